"""The filter of system calls, run by a small machine of our own over every number of both architectures.

What is expected is written down here once more, from the manual pages and not from the table in C.
"""

import errno
import re
import struct
import subprocess
from functools import cache
from pathlib import Path

import pytest
from sandbox_scenes import get_program

import retinue.sandbox

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
MACHINES = sorted(ARCHITECTURES)
WORDS = (0, 1, 2, 7, 0xFF, 0xFFFFFFFF, 2**64 - 1)
CONDITIONAL = {
    "clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199),
    "personality": (135, 92), "setrlimit": (160, 164), "prlimit64": (302, 261), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
}  # fmt: skip
DENIED = {
    "x86_64": {134, 136, 139, 153, 154, 155, 156, 159, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 174,
               175, 176, 177, 178, 179, 180, 103, 212, 227, 237, 238, 246, 248, 249, 250, 256, 279, 298, 300,
               303, 304, 305, 308, 313, 320, 321, 323, 428, 429, 430, 431, 432, 433, 440, 442, 443, 450, 467},
    "aarch64": {18, 39, 40, 41, 42, 51, 58, 60, 89, 104, 105, 106, 112, 116, 142, 161, 162, 170, 171, 217, 218, 219,
                224, 225, 235, 237, 238, 239, 241, 262, 264, 265, 266, 268, 273, 280, 282, 294, 428, 429, 430, 431,
                432, 433, 440, 442, 443, 450, 467},
}  # fmt: skip
ABSENT = {
    "x86_64": {206, 425, 426, 427, 435, 444, 445, 446, 447, 457, 458},
    "aarch64": {0, 425, 426, 427, 435, 444, 445, 446, 447, 457, 458},
}
FAKED = {
    "x86_64": {92, 93, 94, 260, 116, 105, 106, 113, 114, 117, 119, 122, 123, 126},
    "aarch64": {54, 55, 159, 143, 144, 145, 146, 147, 149, 151, 152, 91},
}
MEMFD = {"x86_64": 319, "aarch64": 279}
LAST = 469
Code = tuple[tuple[int, int, int, int], ...]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return get_program(tmp_path_factory.mktemp("program"))


@cache
def read_filter(program: Path, what: str) -> Code:
    listed = subprocess.run([program, "--filter", what], capture_output=True, text=True, check=True).stdout
    lines = [tuple(int(word) for word in line.split()) for line in listed.splitlines()]
    return tuple((code, jt, jf, k) for code, jt, jf, k in lines)


def answer(code: Code, machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would answer. Knows the instructions that we use, and no other."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture or ARCHITECTURES[machine][1], 0, *words)
    at = value = 0
    while True:
        kind, if_true, if_false, operand = code[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif kind == 0x54:
            value &= operand
        elif kind == 0x06:
            return operand
        else:
            tests = {0x15: value == operand, 0x45: bool(value & operand), 0x25: value > operand}
            at += if_true if tests[kind] else if_false


def number_of(name: str, machine: str) -> int:
    return CONDITIONAL[name][ARCHITECTURES[machine][0]]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", ["", "+net", "+fake", "+memfd", "+net+fake+memfd"])
def test_every_number_has_the_answer_that_is_written_down(program: Path, machine: str, options: str) -> None:
    code = read_filter(program, machine + options)
    conditional = {number_of(name, machine) for name in CONDITIONAL}
    for number in [*range(1024), 0x40000000, 0x40000041, 0x7FFFFFFF, 0xFFFFFFFF]:
        answers = {answer(code, machine, number, *[word] * 6) for word in WORDS}
        if number > LAST:
            expected = ENOSYS
        elif number in DENIED[machine]:
            expected = EPERM
        elif number in ABSENT[machine] or (number == MEMFD[machine] and "+memfd" not in options):
            expected = ENOSYS
        elif number in FAKED[machine] and "+fake" in options:
            expected = ERRNO
        elif number in conditional:
            continue
        else:
            expected = ALLOW
        assert answers == {expected}, number


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_architecture_ends_the_process(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+net")
    for other in (0x40000003, 0x40000028, 0xC000003E, 0xC00000B7, 0xFFFFFFFF):
        if other != ARCHITECTURES[machine][1]:
            assert {answer(code, machine, number, architecture=other) for number in range(512)} == {KILL}


@pytest.mark.parametrize("machine", MACHINES)
def test_no_namespace_can_be_made_by_any_of_its_flags(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+net")
    clone, unshare = number_of("clone", machine), number_of("unshare", machine)
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(code, machine, clone, flag | 17) == EPERM
        assert answer(code, machine, clone, flag | 17 | 1 << 40) == EPERM
        assert answer(code, machine, unshare, flag) == EPERM
    assert answer(code, machine, unshare, 0x80) == EPERM
    assert answer(code, machine, unshare, 0x600) == ALLOW
    for usual in (17, 0x01200011, 0x003D0F00, 0x4111):
        assert answer(code, machine, clone, usual) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_no_input_is_put_into_a_terminal(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+net")
    ioctl = number_of("ioctl", machine)
    for command in (0x5412, 0x541C, 0x5423):
        assert answer(code, machine, ioctl, 0, command) == EPERM
        assert answer(code, machine, ioctl, 0, command | 1 << 32) == EPERM, "the kernel takes the low half"
    assert {answer(code, machine, ioctl, command, 0x5401) for command in (0, 0x5412)} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_of_four_families_and_plain_protocols(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+net")
    socket = number_of("socket", machine)
    for family in range(64):
        found = {answer(code, machine, socket, family, kind, 0) for kind in (1, 2, 3)}
        assert found == {ALLOW if family in (1, 2, 10, 16) else ERRNO | errno.EAFNOSUPPORT}, family
    for family in (2, 10):
        for kind in range(16):
            expected = ALLOW if kind <= 3 else ERRNO | errno.ESOCKTNOSUPPORT
            assert answer(code, machine, socket, family, kind | 0x80800, 6) == expected
        for protocol in range(300):
            expected = ALLOW if protocol in (0, 1, 6, 17, 58) else ERRNO | errno.EPROTONOSUPPORT
            assert answer(code, machine, socket, family, 1, protocol) == expected
    for protocol in range(64):
        expected = ALLOW if protocol in (0, 4) else ERRNO | errno.EPROTONOSUPPORT
        assert answer(code, machine, socket, 16, 3, protocol) == expected
    assert answer(code, machine, number_of("socketpair", machine), 1, 2) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_without_a_network_there_are_only_pairs_that_cannot_be_named(program: Path, machine: str) -> None:
    code = read_filter(program, machine)
    denied = ERRNO | errno.EACCES
    for family in range(64):
        assert answer(code, machine, number_of("socket", machine), family, 1, 0) == denied
    for kind in range(16):
        for flags in (0, 0x80000, 0x800):
            found = answer(code, machine, number_of("socketpair", machine), 1, kind | flags)
            assert found == (ALLOW if kind in (1, 5) else denied), kind


@pytest.mark.parametrize("machine", MACHINES)
def test_of_personalities_only_the_usual_and_one_without_random_addresses(program: Path, machine: str) -> None:
    code = read_filter(program, machine)
    personality = number_of("personality", machine)
    assert {answer(code, machine, personality, word) for word in (0, 0xFFFFFFFF, 0x40000)} == {ALLOW}
    assert {answer(code, machine, personality, word) for word in (8, 0x400000, 0x440000, 1)} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_may_be_lowered_but_for_core_and_pid_1(program: Path, machine: str) -> None:
    code = read_filter(program, machine)
    setrlimit, prlimit = number_of("setrlimit", machine), number_of("prlimit64", machine)
    for kind in range(16):
        fake = kind == 4
        assert answer(code, machine, setrlimit, kind, 1) == (ERRNO if fake else ALLOW)
        for new in (8, 1 << 32, 2**64 - 1):
            assert answer(code, machine, prlimit, 0, kind, new) == (ERRNO if fake else ALLOW)
            assert answer(code, machine, prlimit, 1, kind, new) == EPERM
            assert answer(code, machine, prlimit, 1 | 1 << 32, kind, new) == EPERM
        assert {answer(code, machine, prlimit, pid, kind, 0, 8) for pid in (0, 1, 9)} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_nobody_inside_slows_pid_1_down(program: Path, machine: str) -> None:
    code = read_filter(program, machine)
    for name in ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        assert answer(code, machine, number_of(name, machine), 1) == EPERM
        assert {answer(code, machine, number_of(name, machine), pid) for pid in (0, 2, 4711)} == {ALLOW}
    for name, of_user in (("setpriority", 2), ("ioprio_set", 3)):
        call = number_of(name, machine)
        for which in range(4):
            for who in (0, 1, 2):
                expected = EPERM if which == of_user or who == 1 else ALLOW
                assert answer(code, machine, call, which, who) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_the_second_filter_keeps_a_mark_and_nothing_else(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+mark")
    setrlimit, prlimit = number_of("setrlimit", machine), number_of("prlimit64", machine)
    for number in range(1024):
        if number not in (setrlimit, prlimit):
            assert {answer(code, machine, number, *[word] * 6) for word in (*WORDS, 10)} == {ALLOW}
    for kind in range(16):
        assert answer(code, machine, setrlimit, kind, 1) == (EPERM if kind == 10 else ALLOW)
        for new in (8, 1 << 32):
            assert answer(code, machine, prlimit, 5, kind, new) == (EPERM if kind == 10 else ALLOW)
        assert answer(code, machine, prlimit, 5, kind, 0, 8) == ALLOW


def read_headers(machine: str) -> dict[str, int]:
    """The numbers that the compiler's own headers have."""
    header = {"x86_64": "asm/unistd.h", "aarch64": "asm-generic/unistd.h"}[machine]
    defined = subprocess.run(
        ["cc", "-E", "-dM", "-D__BITS_PER_LONG=64", "-include", header, "-x", "c", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {
        name: int(number) for name, number in re.findall(r"#define __NR3?2?6?4?_(\w+) (\d+)$", defined, re.MULTILINE)
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_the_table_in_c_agrees_with_the_headers_of_the_kernel(machine: str) -> None:
    text = (Path(retinue.sandbox.__file__).parent / "runtime" / "filter_calls.h").read_text()
    table = {name: (int(x86), int(arm)) for name, x86, arm in re.findall(r"X\((\w+), (-?\d+), (-?\d+)\)", text)}
    headers = read_headers(machine)
    known = {name: numbers[ARCHITECTURES[machine][0]] for name, numbers in table.items() if name in headers}
    assert len(known) > 60
    assert known == {name: headers[name] for name in known}
