"""Filters of system calls, as BPF built here; what they deny answers an errno and kills nobody.

A plain deny-list over the namespaces (which hold the wall), and the wall itself where there are none.
Calls of another architecture kill the process; x32 calls do not exist. Pure: bytes out of names.
Source: seccomp(2), struct seccomp_data; include/uapi/linux/bpf_common.h.
"""

import errno
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from retinue.checks.jail.syscall_numbers import ARCHITECTURES, NUMBERS

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NR_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16
_X32_BIT = 0x40000000


class When(str, Enum):
    """Which calls of a name are denied."""

    ALWAYS = "always"
    """All."""
    ANY_BIT = "any_bit"
    """Those with one of these bits in the argument."""
    NO_BIT = "no_bit"
    """Those with none of these bits in the argument."""
    ONE_OF = "one_of"
    """Those whose argument is one of these values."""
    NONE_OF = "none_of"
    """Those whose argument is not one of these values."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is denied. Arguments are compared by their lower 32 bits, as the kernel reads an int."""

    names: str
    """System calls, separated by blanks."""
    error: int = errno.EPERM
    when: When = When.ALWAYS
    argument: int = 0
    values: tuple[int, ...] = ()
    """Bits for ANY_BIT and NO_BIT (one value); values for ONE_OF and NONE_OF."""


def is_supported(machine: str) -> bool:
    """Say whether this machine's system call numbers are known here."""
    return machine in ARCHITECTURES


def build_filter(rules: Sequence[Rule], machine: str) -> bytes:
    """Compile rules to a packed array of struct sock_filter; the first rule that fits a call decides.

    Errors: KeyError for a call or machine that is not in the table.
    """
    column, architecture = ARCHITECTURES[machine]
    code = [
        _build(_LOAD, _ARCH_OFFSET),
        _build(_EQUAL, architecture, 1, 0),
        _build(_RETURN, _KILL_PROCESS),
        _build(_LOAD, _NR_OFFSET),
    ]
    if machine == "x86_64":
        code += [_build(_AT_LEAST, _X32_BIT, 0, 1), _build(_RETURN, _ERRNO | errno.ENOSYS)]
    for rule in rules:
        for name in rule.names.split():
            number = NUMBERS[name][column]
            if number is not None:
                code += _build_rule(rule, number)
    code.append(_build(_RETURN, _ALLOW))
    return b"".join(code)


def _build(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


def _build_rule(rule: Rule, number: int) -> list[bytes]:
    """Deny this call where the rule fits, else go on with the number loaded again."""
    deny = _build(_RETURN, _ERRNO | rule.error)
    if rule.when is When.ALWAYS:
        return [_build(_EQUAL, number, 0, 1), deny]
    tests = _TESTS[rule.when](rule.values)
    body = [_build(_LOAD, _ARGS_OFFSET + 8 * rule.argument), *tests, deny, _build(_LOAD, _NR_OFFSET)]
    return [_build(_EQUAL, number, 0, len(body)), *body]


# Each yields jumps that fall through into the deny that follows them, or step over it.


def _build_any_bit(values: tuple[int, ...]) -> list[bytes]:
    return [_build(_ANY_BIT, values[0], 0, 1)]


def _build_no_bit(values: tuple[int, ...]) -> list[bytes]:
    return [_build(_ANY_BIT, values[0], 1, 0)]


def _build_one_of(values: tuple[int, ...]) -> list[bytes]:
    last = len(values) - 1
    return [_build(_EQUAL, value, last - index, 0 if index < last else 1) for index, value in enumerate(values)]


def _build_none_of(values: tuple[int, ...]) -> list[bytes]:
    return [_build(_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]


_TESTS: dict[When, Callable[[tuple[int, ...]], list[bytes]]] = {
    When.ANY_BIT: _build_any_bit,
    When.NO_BIT: _build_no_bit,
    When.ONE_OF: _build_one_of,
    When.NONE_OF: _build_none_of,
}
