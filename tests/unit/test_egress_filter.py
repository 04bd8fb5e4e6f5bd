"""The filter of a guarded service, run by a small machine of classic BPF: both architectures, every kind of call."""

import errno
import struct

import pytest

from retinue.egress import numbers as n
from retinue.egress.bpf import build_filter

ALLOW, NOTIFY = "allow", "notify"
FAR = 0x7F00_0000_0000
"""A pointer whose low half is zero: half a look would take it for none."""
both = pytest.mark.parametrize("machine", n.MACHINES.values(), ids=n.MACHINES)
profiles = pytest.mark.parametrize("udp", ["none", "loopback", "full"])


def run(steps: bytes, audit: int, number: int, *arguments: int) -> str | int:
    """Run a filter over one call: what becomes of it, or the errno."""
    seen = struct.pack(
        "<iIQ6Q", struct.unpack("<i", struct.pack("<I", number))[0], audit, 0, *(*arguments, *[0] * 6)[:6]
    )
    at = register = 0
    while True:
        code, yes, no, value = struct.unpack_from("<HBBI", steps, 8 * at)
        at += 1
        match code:
            case 0x20:
                (register,) = struct.unpack_from("<I", seen, value)
            case 0x54:
                register &= value
            case 0x15:
                at += yes if register == value else no
            case 0x35:
                at += yes if register >= value else no
            case 0x45:
                at += yes if register & value else no
            case 0x05:
                at += value
            case 0x06:
                return {n.RET_ALLOW: ALLOW, n.RET_NOTIFY: NOTIFY}.get(value, value & 0xFFFF)
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@both
@profiles
def test_what_has_nothing_to_do_with_the_network_passes(machine: n.Machine, udp: str) -> None:
    steps = build_filter(machine, udp)
    assert len(steps) // 8 < 64
    handled = {machine.socket, machine.connect, machine.sendto, machine.sendmsg, machine.sendmmsg, *n.IO_URING}
    for number in set(range(600)) - handled:
        assert run(steps, machine.audit, number, 2, 1, 0) == ALLOW


@both
@profiles
def test_a_call_of_another_interface_is_no_call(machine: n.Machine, udp: str) -> None:
    steps = build_filter(machine, udp)
    others = [other.audit for other in n.MACHINES.values() if other is not machine]
    for audit in (*others, 0x40000003, 0x40000028, 0):  # i386, ARM
        for number in (0, machine.connect, machine.socket, 359, 362):
            assert run(steps, audit, number) == errno.ENOSYS
    if machine.other_calls_from:
        for number in (machine.connect, machine.socket, 0, 519):
            assert run(steps, machine.audit, machine.other_calls_from + number) == errno.ENOSYS
    for number in n.IO_URING:
        assert run(steps, machine.audit, number) == errno.ENOSYS


@both
@profiles
def test_every_connect_is_looked_at(machine: n.Machine, udp: str) -> None:
    assert run(build_filter(machine, udp), machine.audit, machine.connect, 3, FAR, 16) == NOTIFY


@both
@profiles
@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ((3, FAR, 4, 0, 0, 0), ALLOW),
        ((3, FAR, 4, 0, FAR, 16), NOTIFY),
        ((3, FAR, 4, 0, 0x1000, 16), NOTIFY),
        ((3, FAR, 4, n.MSG_FASTOPEN, 0, 0), errno.EOPNOTSUPP),
        ((3, FAR, 4, n.MSG_FASTOPEN | 0x4000, FAR, 16), errno.EOPNOTSUPP),
        ((3, FAR, 4, FAR | n.MSG_FASTOPEN, FAR, 16), errno.EOPNOTSUPP),
    ],
)
def test_a_send_is_looked_at_when_it_has_an_address(
    machine: n.Machine, udp: str, arguments: tuple[int, ...], verdict: str | int
) -> None:
    assert run(build_filter(machine, udp), machine.audit, machine.sendto, *arguments) == verdict


@both
@profiles
def test_messages_are_looked_at_only_where_datagrams_may_leave(machine: n.Machine, udp: str) -> None:
    steps = build_filter(machine, udp)
    verdict = NOTIFY if udp == "full" else ALLOW
    assert run(steps, machine.audit, machine.sendmsg, 3, FAR, 0) == verdict
    assert run(steps, machine.audit, machine.sendmmsg, 3, FAR, 2, 0) == verdict
    assert run(steps, machine.audit, machine.sendmsg, 3, FAR, n.MSG_FASTOPEN) == errno.EOPNOTSUPP
    assert run(steps, machine.audit, machine.sendmmsg, 3, FAR, 2, n.MSG_FASTOPEN) == errno.EOPNOTSUPP


@both
@profiles
@pytest.mark.parametrize("flags", [0, 0o2000000, 0o4000, 0o2004000], ids=["", "cloexec", "nonblock", "both"])
def test_sockets_are_sorted_by_what_they_can_reach(machine: n.Machine, udp: str, flags: int) -> None:
    steps = build_filter(machine, udp)

    def make(family: int, kind: int, protocol: int) -> str | int:
        return run(steps, machine.audit, machine.socket, family, kind | flags, protocol)

    for family in (n.AF_UNIX, n.AF_NETLINK):
        assert {make(family, kind, 0) for kind in (1, 2, 3, 5)} == {ALLOW}
    for family in (n.AF_INET, n.AF_INET6):
        assert make(family, 1, 0) == make(family, 1, n.IPPROTO_TCP) == ALLOW
        assert make(family, 1, n.IPPROTO_MPTCP) == errno.EPROTONOSUPPORT
        assert make(family, 2, 0) == make(family, 2, n.IPPROTO_UDP) == (ALLOW if udp == "full" else NOTIFY)
        others = [(1, 132), (2, 1), (2, 58), (2, 136), (3, 255), (3, 1), (4, 0), (5, 132), (6, 0), (10, 0)]
        assert {make(family, *other) for other in others} == {NOTIFY}
    for family in set(range(64)) - {n.AF_UNIX, n.AF_NETLINK, n.AF_INET, n.AF_INET6}:
        assert make(family, 1, 0) == make(family, 2, 0) == NOTIFY
