"""The seccomp filter of a guarded service, as bytes. Pure.

Classic BPF sees the call's number and registers, never memory: what depends on an
address becomes a notification, what is always fine passes, what nobody needs is refused.
Source: seccomp(2), linux/filter.h, linux/bpf_common.h.
"""

import errno
import struct
from typing import NamedTuple

from retinue.egress import numbers as n

LOAD, AND, RETURN, JUMP = 0x20, 0x54, 0x06, 0x05
EQUAL, AT_LEAST, HAS_BITS = 0x15, 0x35, 0x45
NUMBER_AT, ARCH_AT = 0, 4

ALLOW = "allow"
NOTIFY = "notify"
NO_CALL = "no such call"
NO_FASTOPEN = "no fastopen"
NO_PROTOCOL = "no protocol"
_ENDS = {
    ALLOW: n.RET_ALLOW,
    NOTIFY: n.RET_NOTIFY,
    NO_CALL: n.RET_ERRNO | errno.ENOSYS,
    # What a kernel without it says: callers fall back to a plain connect.
    NO_FASTOPEN: n.RET_ERRNO | errno.EOPNOTSUPP,
    NO_PROTOCOL: n.RET_ERRNO | errno.EPROTONOSUPPORT,
}


class Step(NamedTuple):
    """One instruction; a jump names the label it goes to when true (or always), and falls through otherwise."""

    code: int
    value: int = 0
    to: str = ""
    label: str = ""
    """Of this instruction."""


def build_filter(machine: n.Machine, udp: str) -> bytes:
    """Build the filter for a UDP profile: `none`, `loopback` or `full`.

    Shape: an array of struct sock_filter, 8 bytes each, in the machine's byte order (both are little-endian).
    """
    steps = [
        *_check_arch(machine),
        *_choose_call(machine),
        *_look_at_sendto(),
        *_look_at_sendmsg("sendmsg", 2, NOTIFY if udp == "full" else ALLOW),
        *_look_at_sendmsg("sendmmsg", 3, NOTIFY if udp == "full" else ALLOW),
        *_look_at_socket(udp),
        *(Step(RETURN, value, label=name) for name, value in _ENDS.items()),
    ]
    return _assemble(steps)


def _check_arch(machine: n.Machine) -> list[Step]:
    """A call of another interface has other numbers, so none of them passes."""
    steps = [Step(LOAD, ARCH_AT), Step(EQUAL, machine.audit, "native"), Step(JUMP, to=NO_CALL)]
    steps.append(Step(LOAD, NUMBER_AT, label="native"))
    if machine.other_calls_from:
        steps.append(Step(AT_LEAST, machine.other_calls_from, NO_CALL))
    return steps


def _choose_call(machine: n.Machine) -> list[Step]:
    return [
        Step(EQUAL, machine.connect, NOTIFY),
        Step(EQUAL, machine.sendto, "sendto"),
        Step(EQUAL, machine.sendmsg, "sendmsg"),
        Step(EQUAL, machine.sendmmsg, "sendmmsg"),
        Step(EQUAL, machine.socket, "socket"),
        # A ring would send and connect without any call.
        *(Step(EQUAL, number, NO_CALL) for number in n.IO_URING),
        Step(JUMP, to=ALLOW),
    ]


def _look_at_sendto() -> list[Step]:
    """Without an address it goes where the socket is connected to already: both halves of the pointer are zero."""
    return [
        Step(LOAD, _low(3), label="sendto"),
        Step(HAS_BITS, n.MSG_FASTOPEN, NO_FASTOPEN),
        Step(LOAD, _low(4)),
        Step(EQUAL, 0, "sendto high"),
        Step(JUMP, to=NOTIFY),
        Step(LOAD, _low(4) + 4, label="sendto high"),
        Step(EQUAL, 0, ALLOW),
        Step(JUMP, to=NOTIFY),
    ]


def _look_at_sendmsg(name: str, flags_at: int, end: str) -> list[Step]:
    """TCP ignores the address without FASTOPEN, and without `full` there is no UDP socket that leaves the node."""
    return [
        Step(LOAD, _low(flags_at), label=name),
        Step(HAS_BITS, n.MSG_FASTOPEN, NO_FASTOPEN),
        Step(JUMP, to=end),
    ]


def _look_at_socket(udp: str) -> list[Step]:
    datagram = [Step(EQUAL, 0, ALLOW), Step(EQUAL, n.IPPROTO_UDP, ALLOW)] if udp == "full" else []
    return [
        Step(LOAD, _low(0), label="socket"),
        Step(EQUAL, n.AF_UNIX, ALLOW),
        Step(EQUAL, n.AF_NETLINK, ALLOW),
        Step(EQUAL, n.AF_INET, "internet"),
        Step(EQUAL, n.AF_INET6, "internet"),
        Step(JUMP, to=NOTIFY),
        Step(LOAD, _low(1), label="internet"),
        Step(AND, n.SOCK_TYPE_MASK),
        Step(EQUAL, n.SOCK_STREAM, "stream"),
        Step(EQUAL, n.SOCK_DGRAM, "datagram"),
        Step(JUMP, to=NOTIFY),
        Step(LOAD, _low(2), label="stream"),
        Step(EQUAL, 0, ALLOW),
        Step(EQUAL, n.IPPROTO_TCP, ALLOW),
        Step(EQUAL, n.IPPROTO_MPTCP, NO_PROTOCOL),
        Step(JUMP, to=NOTIFY),
        Step(LOAD, _low(2), label="datagram"),
        *datagram,
        Step(JUMP, to=NOTIFY),
    ]


def _low(argument: int) -> int:
    """Where struct seccomp_data has the low half of an argument."""
    return 16 + 8 * argument


def _assemble(steps: list[Step]) -> bytes:
    places = {step.label: index for index, step in enumerate(steps) if step.label}
    return b"".join(_encode(step, index, places) for index, step in enumerate(steps))


def _encode(step: Step, index: int, places: dict[str, int]) -> bytes:
    distance = places[step.to] - index - 1 if step.to else 0
    if step.code == JUMP:
        return struct.pack("<HBBI", JUMP, 0, 0, distance)
    return struct.pack("<HBBI", step.code, distance, 0, step.value)
