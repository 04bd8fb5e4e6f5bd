"""One waiting call in, its one answer out.

What depends on memory that the caller can change meanwhile is done here with a copy of it.
Left to the kernel (GO_ON) is only what may not leave the node, or what no copy can do.
"""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from retinue.egress import ledger, notify, sockets
from retinue.egress import numbers as n
from retinue.egress.addresses import SOCKADDR_MAX, Place, parse_place, read_own_addresses
from retinue.egress.caller import Callers, read_memory, read_network, read_program
from retinue.egress.connecting import GO_ON, connect_for
from retinue.egress.messages import read_names
from retinue.egress.notify import Mark, Notice, Slate
from retinue.egress.rules import Reach, Rules
from retinue.egress.sockets import Kind
from retinue.terms.egress import Denied

DATAGRAM_MAX = 65536
_LOCAL = (n.AF_UNIX, n.AF_NETLINK)
_INTERNET = (n.AF_INET, n.AF_INET6)
_PASSED_ON = frozenset({errno.EBADF, errno.EFAULT, errno.ENOTSOCK, errno.EINVAL, errno.EMSGSIZE, errno.ESRCH})
"""What the kernel itself would say, or nobody hears; any other failure to look at a call denies it."""
TRIES_MAX = 3
"""Supervisors that a single call may cost; the next one denies it unseen."""
_DONTWAIT, _NOSIGNAL, _ZEROCOPY = 0x40, 0x4000, 0x4000000
_OWN_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """One tree of processes and the listener its calls come from."""

    key: int
    replica: str
    listener: int
    rules: Rules


class Answering:
    """Looks at calls and answers them, one at a time."""

    def __init__(self, machine: n.Machine, slate: Slate, reach: Reach, on_denied: Callable[[Denied], None]) -> None:
        self._calls = {
            machine.connect: self._answer_connect,
            machine.sendto: self._answer_sendto,
            machine.sendmsg: self._answer_sendmsg,
            machine.sendmmsg: self._answer_sendmmsg,
            machine.socket: self._answer_socket,
        }
        self._slate = slate
        self._reach = reach
        self._on_denied = on_denied
        self._callers = Callers()
        self._network = read_network("self")
        self._own_read_s = float("-inf")

    def answer(self, guarded: Guarded, notice: Notice, mark: Mark) -> None:
        """Answer the call on the slate, and wipe it."""
        try:
            if mark.tries >= TRIES_MAX:
                self._deny(guarded, notice, ledger.UNREADABLE)
            else:
                self._calls[notice.number](guarded, notice, mark)
        except OSError as error:
            self._fail(guarded, notice, error)
        self._slate.wipe()

    def _fail(self, guarded: Guarded, notice: Notice, error: OSError) -> None:
        """It cannot be looked at: a caller that is not to be traced, a system that ran out of something."""
        if error.errno in _PASSED_ON:
            notify.answer_errno(guarded.listener, notice, error.errno or errno.EACCES)
        elif notify.is_waiting(guarded.listener, notice):
            self._deny(guarded, notice, ledger.UNREADABLE)

    def _deny(
        self,
        guarded: Guarded,
        notice: Notice,
        what: str,
        place: Place | None = None,
        number: int = errno.EACCES,
    ) -> None:
        now_utc = time.time()
        address, port = (place.text(), place.port) if place is not None else ("", 0)
        program = read_program(notice.tid)
        notify.answer_errno(guarded.listener, notice, number)
        self._on_denied(Denied(guarded.replica, what, address, port, 1, now_utc, now_utc, notice.tid, program))

    def _admits(self, guarded: Guarded, place: Place, is_datagram: bool) -> bool:
        if guarded.rules.admit(place, is_datagram):
            return True
        # An interface may have got an address since; a service that is denied all the time must not cost a read each.
        now_s = time.monotonic()
        if now_s - self._own_read_s < _OWN_REST_S:
            return False
        self._own_read_s = now_s
        self._reach.take_own(read_own_addresses())
        return guarded.rules.admit(place, is_datagram)

    # --- connect --------------------------------------------------------------------------

    def _answer_connect(self, guarded: Guarded, notice: Notice, mark: Mark) -> None:
        number, address_at, size = notice.arguments[0], notice.arguments[1], _to_int(notice.arguments[2])
        fd = self._callers.take_descriptor(notice.tid, _to_int(number))
        try:
            kind = sockets.find_kind(fd)
            if kind.domain in _LOCAL:
                # Only the caller itself has its working directory, and its credentials on the other side.
                notify.answer_go_on(guarded.listener, notice)
                return
            raw = _read_address(notice.tid, address_at, size)
            if not notify.is_waiting(guarded.listener, notice):
                return
            if not self._is_fine(guarded, notice, kind, raw):
                return
            result = connect_for(fd, raw, kind.type == n.SOCK_STREAM, self._slate, mark._replace(fd=_to_int(number)))
        finally:
            os.close(fd)
        if result == GO_ON:
            notify.answer_go_on(guarded.listener, notice)
        else:
            notify.answer_errno(guarded.listener, notice, result)

    def _is_fine(self, guarded: Guarded, notice: Notice, kind: Kind, raw: bytes) -> bool:
        """Say whether a connect may be done; denies it otherwise."""
        family = int.from_bytes(raw[:2], "little") if len(raw) >= 2 else n.AF_UNSPEC
        is_datagram = kind.type != n.SOCK_STREAM
        if kind.domain not in _INTERNET:
            self._deny(guarded, notice, ledger.OTHER_SOCKET)
            return False
        # None: AF_UNSPEC, which undoes a connect, or what the kernel refuses itself.
        place = parse_place(raw, family)
        if place is None or self._admits(guarded, place, is_datagram):
            return True
        self._deny(guarded, notice, ledger.PROBE if is_datagram else ledger.TCP, place)
        return False

    # --- datagrams with an address --------------------------------------------------------

    def _answer_sendto(self, guarded: Guarded, notice: Notice, mark: Mark) -> None:
        number, payload_at, length, flags, address_at, size = notice.arguments
        fd = self._callers.take_descriptor(notice.tid, _to_int(number))
        try:
            kind = sockets.find_kind(fd)
            if kind.domain in _LOCAL or kind.type == n.SOCK_STREAM:
                notify.answer_go_on(guarded.listener, notice)
                return
            raw = _read_address(notice.tid, address_at, _to_int(size))
            if length > DATAGRAM_MAX:
                raise OSError(errno.EMSGSIZE, "datagram")
            payload = read_memory(notice.tid, payload_at, length)
            if not notify.is_waiting(guarded.listener, notice) or not self._may_send(guarded, notice, kind, raw):
                return
            wanted = (flags & 0xFFFFFFFF & ~_ZEROCOPY) | _DONTWAIT | _NOSIGNAL
            count, result = sockets.send(fd, payload, wanted, raw)
        finally:
            os.close(fd)
        if count >= 0:
            notify.answer_value(guarded.listener, notice, count)
        else:
            # A full buffer would have had the caller wait; a datagram may be lost instead, as on any network.
            is_full = result == errno.EAGAIN and not flags & _DONTWAIT
            notify.answer_errno(guarded.listener, notice, errno.ENOBUFS if is_full else result)

    def _may_send(self, guarded: Guarded, notice: Notice, kind: Kind, raw: bytes) -> bool:
        """Say whether a datagram may go to this address; denies it otherwise."""
        if kind.domain not in _INTERNET:
            self._deny(guarded, notice, ledger.OTHER_SOCKET)
            return False
        family = int.from_bytes(raw[:2], "little") if len(raw) >= 2 else n.AF_UNSPEC
        if family == n.AF_UNSPEC and kind.domain == n.AF_INET:
            # udp_sendmsg() takes it for AF_INET; an IPv6 socket takes it for no address at all.
            family = n.AF_INET
        place = parse_place(raw, family)
        if place is None or self._admits(guarded, place, is_datagram=True):
            return True
        self._deny(guarded, notice, ledger.UDP, place)
        return False

    def _answer_sendmsg(self, guarded: Guarded, notice: Notice, mark: Mark) -> None:
        self._answer_messages(guarded, notice, 1, is_many=False)

    def _answer_sendmmsg(self, guarded: Guarded, notice: Notice, mark: Mark) -> None:
        self._answer_messages(guarded, notice, notice.arguments[2] & 0xFFFFFFFF, is_many=True)

    def _answer_messages(self, guarded: Guarded, notice: Notice, count: int, is_many: bool) -> None:
        """Look at every address, then let the kernel send: ancillary data cannot be passed on by anybody else."""
        fd = self._callers.take_descriptor(notice.tid, _to_int(notice.arguments[0]))
        try:
            kind = sockets.find_kind(fd)
        finally:
            os.close(fd)
        if kind.domain not in _LOCAL and kind.type != n.SOCK_STREAM:
            names = read_names(notice.tid, notice.arguments[1], count, is_many)
            if not notify.is_waiting(guarded.listener, notice):
                return
            if not all(self._may_send(guarded, notice, kind, raw) for raw in names):
                return
        notify.answer_go_on(guarded.listener, notice)

    # --- sockets ----------------------------------------------------------------------------

    def _answer_socket(self, guarded: Guarded, notice: Notice, mark: Mark) -> None:
        domain, kind, protocol = (_to_int(argument) for argument in notice.arguments[:3])
        if domain not in _INTERNET:
            self._deny(guarded, notice, ledger.OTHER_SOCKET, number=errno.EAFNOSUPPORT)
            return
        is_udp = kind & n.SOCK_TYPE_MASK == n.SOCK_DGRAM and protocol in (0, n.IPPROTO_UDP)
        if read_network(notice.tid) not in ("", self._network):
            # In a network of its own, which leads nowhere; a socket of ours would lead out of it.
            notify.answer_go_on(guarded.listener, notice)
        elif not is_udp:
            self._deny(guarded, notice, ledger.OTHER_SOCKET)
        elif guarded.rules.udp == "loopback":
            with sockets.build_loopback_datagram(domain, kind & ~os.O_CLOEXEC, protocol) as made:
                result = notify.answer_descriptor(guarded.listener, notice, made.fileno(), bool(kind & os.O_CLOEXEC))
            if result:
                notify.answer_errno(guarded.listener, notice, result)
        else:
            self._deny(guarded, notice, ledger.UDP_SOCKET)


def _to_int(argument: int) -> int:
    """The kernel takes the low half of a register as a signed int."""
    low = argument & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def _read_address(tid: int, address: int, size: int) -> bytes:
    if not 0 <= size <= SOCKADDR_MAX:
        raise OSError(errno.EINVAL, "address size")
    return read_memory(tid, address, size)
