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
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "prctl": (157, 167), "setsockopt": (54, 208),
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
    "x86_64": {206, 317, 425, 426, 427, 435, 444, 445, 446, 447, 457, 458},
    "aarch64": {0, 277, 425, 426, 427, 435, 444, 445, 446, 447, 457, 458},
}
FAKED = {
    "x86_64": {92, 93, 94, 260, 116, 105, 106, 113, 114, 117, 119, 122, 123, 126},
    "aarch64": {54, 55, 159, 143, 144, 145, 146, 147, 149, 151, 152, 91},
}
MEMFD = {"x86_64": 319, "aarch64": 279}
SETUP = {"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "sethostname": (170, 161)}
CAPSET = (126, 91)
SETUP_KEY, MARK_KEY = 0x5E70123456789ABC, 0x3A4BFEDCBA987654
"""What `--filter` shows; a real filter has random ones."""
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
    at = value = aside = 0
    while True:
        kind, if_true, if_false, operand = code[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif kind == 0x54:
            value &= operand
        elif kind == 0xA4:
            value ^= operand
        elif kind == 0x07:
            aside = value
        elif kind == 0x4C:
            value |= aside
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
def test_limits_may_be_lowered_but_for_core_marks_and_pid_1(program: Path, machine: str) -> None:
    code = read_filter(program, machine)
    setrlimit, prlimit = number_of("setrlimit", machine), number_of("prlimit64", machine)
    for kind in range(16):
        expected = {4: ERRNO, 10: EPERM}.get(kind, ALLOW)
        assert answer(code, machine, setrlimit, kind, 1) == expected
        for new in (8, 1 << 32, 2**64 - 1):
            assert answer(code, machine, prlimit, 0, kind, new) == expected
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
def test_a_mark_is_set_with_its_key_alone(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+net")
    setrlimit, prlimit = number_of("setrlimit", machine), number_of("prlimit64", machine)
    assert {answer(code, machine, setrlimit, 10, 1, 0, 0, 0, key) for key in (0, SETUP_KEY, MARK_KEY)} == {EPERM}
    for new in (8, 1 << 32):
        assert answer(code, machine, prlimit, 0, 10, new, 0, 0, MARK_KEY) == ALLOW
        assert {answer(code, machine, prlimit, 0, 10, new, 0, 0, wrong) for wrong in list_wrong(MARK_KEY)} == {EPERM}
        assert answer(code, machine, prlimit, 1, 10, new, 0, 0, MARK_KEY) == EPERM, "never on pid 1"
    assert answer(code, machine, prlimit, 5, 10, 0, 8) == ALLOW


def list_wrong(key: int) -> list[int]:
    """Every word that is off by one bit, and others that are nearly the key."""
    halves = (key & 0xFFFFFFFF, key >> 32, key >> 32 | (key & 0xFFFFFFFF) << 32)
    others = (SETUP_KEY, MARK_KEY, 0, 2**64 - 1, *halves, key & ~0xFFFFFFFF, ~key & 2**64 - 1)
    return [*(key ^ 1 << bit for bit in range(64)), *(word for word in others if word != key)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", ["", "+net+fake+memfd"])
def test_what_sets_a_sandbox_up_passes_with_the_key_alone(program: Path, machine: str, options: str) -> None:
    code, column = read_filter(program, machine + options), ARCHITECTURES[machine][0]
    without = ERRNO if "+fake" in options else ALLOW
    rules = [(numbers[column], 0, EPERM) for numbers in SETUP.values()]
    rules += [(number_of("clone", machine), 0x2C020011, EPERM), (CAPSET[column], 0, without)]
    for number, first, refused in rules:
        assert answer(code, machine, number, first, 0, 0, 0, 0, SETUP_KEY) == ALLOW
        assert {answer(code, machine, number, first, 0, 0, 0, 0, wrong) for wrong in list_wrong(SETUP_KEY)} == {refused}
        elsewhere = [answer(code, machine, number, first, *[SETUP_KEY] * count) for count in range(1, 5)]
        assert set(elsewhere) == {refused}, number


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("key", [SETUP_KEY, MARK_KEY])
def test_to_any_other_call_a_key_is_a_word_like_others(program: Path, machine: str, key: int) -> None:
    code, column = read_filter(program, machine + "+net+fake"), ARCHITECTURES[machine][0]
    of_setup = {numbers[column] for numbers in SETUP.values()} | {CAPSET[column], number_of("clone", machine)}
    keyed = of_setup if key == SETUP_KEY else {number_of("prlimit64", machine)}
    for number in range(1024):
        for first in (0, 1, 7, 0xFFFFFFFF):
            plain = answer(code, machine, number, first, 10, 8, 0, 0, 0)
            if number not in keyed:
                assert answer(code, machine, number, first, 10, 8, 0, 0, key) == plain, number


@pytest.mark.parametrize("machine", MACHINES)
def test_nobody_inside_has_the_kernel_compile_a_program(program: Path, machine: str) -> None:
    code = read_filter(program, machine + "+net")
    prctl, setsockopt = number_of("prctl", machine), number_of("setsockopt", machine)
    for option in range(80):
        for mode in (0, 1, 2, 1 << 40):
            assert answer(code, machine, prctl, option, mode) == (ERRNO | errno.EINVAL if option == 22 else ALLOW)
    assert answer(code, machine, prctl, 22 | 1 << 32, 2) == ERRNO | errno.EINVAL, "the kernel takes the low half"
    for name in range(128):
        attaches = name in (26, 50, 51, 52)
        assert answer(code, machine, setsockopt, 5, 1, name) == (ERRNO | errno.ENOPROTOOPT if attaches else ALLOW)
        assert answer(code, machine, setsockopt, 5, 1 | 1 << 32, name | 1 << 32) == answer(code, machine, setsockopt, 5, 1, name)  # fmt: skip # noqa: E501
        assert answer(code, machine, setsockopt, 5, 6, name) == ALLOW


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
