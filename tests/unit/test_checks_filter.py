"""The system call filters, run by a small machine of our own over every call number there is."""

import errno
import struct

import pytest

from retinue.checks.jail.rules import COMMON, NAMESPACED, NO_FORKS, build_bare_rules
from retinue.checks.jail.seccomp import Rule, When, build_filter, is_supported
from retinue.checks.jail.syscall_numbers import ARCHITECTURES, NUMBERS

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
MACHINES = sorted(ARCHITECTURES)
PID = 4711


def run_filter(program: bytes, machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would answer. Knows the instructions that we use, and no other."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture or ARCHITECTURES[machine][1], 0, *words)
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        kind, if_true, if_false, operand = code[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif kind == 0x06:
            return int(operand)
        else:
            tests = {0x15: value == operand, 0x45: bool(value & operand), 0x35: value >= operand}
            at += if_true if tests[kind] else if_false


def name_number(name: str, machine: str) -> int | None:
    return NUMBERS[name][ARCHITECTURES[machine][0]]


def find_denied(rules: tuple[Rule, ...], machine: str, *arguments: int) -> set[str]:
    program = build_filter(rules, machine)
    answers = {
        name: run_filter(program, machine, number, *arguments)
        for name in NUMBERS
        if (number := name_number(name, machine)) is not None
    }
    return {name for name, answer in answers.items() if answer != ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rules", [COMMON, NAMESPACED, NO_FORKS, build_bare_rules(PID, False)])
def test_exactly_the_named_calls_are_ever_denied(rules: tuple[Rule, ...], machine: str) -> None:
    program = build_filter(rules, machine)
    named = {name_number(name, machine) for rule in rules for name in rule.names.split()}
    for number in range(1024):
        answers = {run_filter(program, machine, number, *[word] * 6) for word in (0, 1, 2, PID, 0xFFFFFFFF)}
        assert answers == {ALLOW} or number in named


@pytest.mark.parametrize("machine", MACHINES)
def test_every_unconditional_rule_denies_with_its_errno(machine: str) -> None:
    for rules in (COMMON, NAMESPACED, build_bare_rules(PID, True)):
        program = build_filter(rules, machine)
        for rule in rules:
            for name in rule.names.split():
                number = name_number(name, machine)
                if number is not None and rule.when is When.ALWAYS:
                    assert run_filter(program, machine, number) == ERRNO | rule.error, name


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_reach_only_the_own_pid(machine: str) -> None:
    program = build_filter(build_bare_rules(PID, True), machine)
    for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        number = name_number(name, machine)
        assert number is not None
        assert run_filter(program, machine, number, PID, 9) == ALLOW
        for other in (0, 1, PID + 1, 0xFFFFFFFF, 2**64 - 1, 2**64 - PID):
            assert run_filter(program, machine, number, other, 9) == ERRNO | errno.EPERM, (name, other)


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_makes_threads_but_no_namespace(machine: str) -> None:
    number = name_number("clone", machine)
    assert number is not None
    thread, fork, new_user = 0x3D0F00, 0x01200011, 0x10000011
    namespaced, bare = (build_filter(rules, machine) for rules in (NAMESPACED, build_bare_rules(PID, True)))
    no_forks = build_filter((*NAMESPACED, *NO_FORKS), machine)
    assert [run_filter(namespaced, machine, number, flags) for flags in (thread, fork)] == [ALLOW, ALLOW]
    assert run_filter(no_forks, machine, number, fork) == ERRNO | errno.EAGAIN
    for program in (bare, no_forks):
        assert run_filter(program, machine, number, thread) == ALLOW
        assert run_filter(program, machine, number, fork) != ALLOW
    for kind in (0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000):
        for program in (namespaced, bare, no_forks):
            assert run_filter(program, machine, number, thread | kind) == ERRNO | errno.EPERM
    assert run_filter(namespaced, machine, number, new_user) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_without_landlock_files_open_for_reading_only(machine: str) -> None:
    number = name_number("openat", machine)
    assert number is not None
    without, with_it = (build_filter(build_bare_rules(PID, has), machine) for has in (False, True))
    for flags in (1, 2, 0o100, 0o1000, 0o1101):
        assert run_filter(without, machine, number, 0, 0, flags) == ERRNO | errno.EROFS
        assert run_filter(with_it, machine, number, 0, 0, flags) == ALLOW
    assert run_filter(without, machine, number, 0, 0, 0o2000000) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_and_priorities_of_others_are_out_of_reach(machine: str) -> None:
    assert {"prlimit64", "sched_setaffinity", "setpriority", "ioprio_set"} <= find_denied(
        build_bare_rules(PID, True), machine, PID + 1, PID + 1
    )
    assert "prlimit64" not in find_denied(build_bare_rules(PID, True), machine, PID)
    assert "setpriority" in find_denied(build_bare_rules(PID, True), machine, 2, 0)
    assert "setpriority" not in find_denied(build_bare_rules(PID, True), machine, 0, 0)


def test_a_call_of_another_architecture_kills_and_x32_does_not_exist() -> None:
    program = build_filter(COMMON, "x86_64")
    assert run_filter(program, "x86_64", 0, architecture=0x40000003) == KILL
    assert run_filter(program, "x86_64", 0x40000000 | 41) == ERRNO | errno.ENOSYS


def test_values_match_any_of_several() -> None:
    one_of = build_filter((Rule("fcntl", 5, When.ONE_OF, 1, (3, 5, 7)),), "x86_64")
    none_of = build_filter((Rule("fcntl", 5, When.NONE_OF, 1, (3, 5, 7)),), "x86_64")
    for value in range(10):
        expected = ERRNO | 5 if value in (3, 5, 7) else ALLOW
        assert run_filter(one_of, "x86_64", 72, 0, value) == expected
        assert (run_filter(none_of, "x86_64", 72, 0, value) == ALLOW) == (value in (3, 5, 7))


def test_an_unknown_machine_is_said_to_be_one() -> None:
    assert not is_supported("riscv64")
