"""Who may call: the run's owner by the uid of the peer's socket, anyone else by the run's token.

The uid is asked of the kernel once per connection: one exact sock_diag look-up of
the 4-tuple, unprivileged, no dump. Whatever is not certain is unknown, and unknown needs the token.
"""

import hmac
import os
import socket
import struct
from collections.abc import Iterable

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
TCP_TIME_WAIT = 6
TCP_LISTEN = 10
OVERFLOW_UID_PATH = "/proc/sys/kernel/overflowuid"

_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port id."""
_REQUEST = struct.Struct("=BBBBI")
"""inet_diag_req_v2 up to its id: family, protocol, extensions, pad, states."""
_SOCKET_ID = struct.Struct("!HH16s16s")
"""inet_diag_sockid without its end: source port, destination port, source, destination."""
_ANY_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ANSWER = struct.Struct("=BBBB48sIIIII")
"""inet_diag_msg: family, state, timer, retransmits, id, expires, rqueue, wqueue, uid, inode."""
_ANSWERS_READ_MAX = 8

Address = tuple[str, int]


class PeerUids:
    """One netlink socket that answers whose a TCP socket of this host is."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._sequence = 0

    def find_uid(self, peer: Address, ours: Address) -> int | None:
        """Return the uid that owns the *peer's* end of an accepted connection, or None when that is not certain.

        Shape:  `peer` and `ours` as `getpeername` and `getsockname` of the accepted socket; IPv4, IPv6, or IPv4-mapped.
        Source: sock_diag(7); include/uapi/linux/inet_diag.h.
        """
        try:
            family, packed_peer, packed_ours = _pack_addresses(peer, ours)
            wanted = _SOCKET_ID.pack(peer[1], ours[1], packed_peer, packed_ours)
            answer = self._ask(family, wanted)
        except OSError:
            self.close()
            return None
        if answer is None:
            return None
        _, state, _, _, found, _, _, _, uid, inode = _ANSWER.unpack_from(answer)
        # Not found as a connection, the kernel looks for a listener on that port: somebody else's.
        # A socket that its process closed has no inode, and then the uid reads 0, whoever it was.
        if found[: len(wanted)] != wanted or state in (TCP_LISTEN, TCP_TIME_WAIT) or inode == 0:
            return None
        return int(uid)

    def close(self) -> None:
        """Close the netlink socket; the next question opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, family: int, wanted: bytes) -> bytes | None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
            # The kernel answers inside send(), so an answer is there or never comes.
            self._socket.setblocking(False)
            self._socket.connect((0, 0))
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + wanted + _ANY_INTERFACE_NO_COOKIE
        size = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, self._sequence, 0) + body)
        for _ in range(_ANSWERS_READ_MAX):
            answer = self._socket.recv(8192)
            _, kind, _, sequence, _ = _HEADER.unpack_from(answer)
            if sequence == self._sequence:
                is_answer = kind == SOCK_DIAG_BY_FAMILY and len(answer) >= _HEADER.size + _ANSWER.size
                return answer[_HEADER.size :] if is_answer else None
        return None


def _pack_addresses(peer: Address, ours: Address) -> tuple[int, bytes, bytes]:
    hosts = [host.removeprefix("::ffff:") if "." in host else host for host in (peer[0], ours[0])]
    family = socket.AF_INET6 if ":" in hosts[0] else socket.AF_INET
    packed = [socket.inet_pton(family, host).ljust(16, b"\0") for host in hosts]
    return family, packed[0], packed[1]


def read_own_uid() -> int | None:
    """Return our uid, or None when a match would prove nothing.

    In a user namespace every unmapped user reads as the overflow uid, so an owner who *is* that uid needs the token.
    """
    try:
        with open(OVERFLOW_UID_PATH, encoding="ascii") as file:
            overflow = int(file.read())
    except (OSError, ValueError):
        overflow = 65534
    uid = os.getuid()
    return None if uid == overflow else uid


class Doorkeeper:
    """Decides whether a connection, or one request on it, may call."""

    def __init__(self, token: str, own_uid: int | None) -> None:
        self._token = token.encode()
        self._own_uid = own_uid
        self._uids = PeerUids()
        self._owned: set[object] = set()

    def admit(self, connection: object, peer: object, ours: object) -> None:
        """Look at a connection that was just accepted; asked once, while its other end is surely still open."""
        if self._own_uid is None or not (isinstance(peer, tuple) and isinstance(ours, tuple)):
            return
        if self._uids.find_uid(peer[:2], ours[:2]) == self._own_uid:
            self._owned.add(connection)

    def forget(self, connection: object) -> None:
        """Forget a connection that ended."""
        self._owned.discard(connection)

    def may_call(self, connection: object, authorization: Iterable[str], api_key: Iterable[str]) -> bool:
        """Tell whether a request on this connection, with these header values, is allowed."""
        return connection in self._owned or self._has_token(authorization, api_key)

    def close(self) -> None:
        """Close what was opened."""
        self._uids.close()

    def list_passed_on(self, headers: Iterable[tuple[str, str]], wants_token: bool = False) -> list[tuple[str, str]]:
        """List what a service is sent: a key of its own, but not the run's token, which opens every service.

        `wants_token`: the token *is* its key. Clients' libraries always send one, so what they made up is replaced.
        """
        if wants_token:
            kept = [(name, value) for name, value in headers if name.lower() not in ("authorization", "x-api-key")]
            return [*kept, ("Authorization", f"Bearer {self._token.decode()}")]
        return [(name, value) for name, value in headers if not self._is_token(name.lower(), value)]

    def _has_token(self, authorization: Iterable[str], api_key: Iterable[str]) -> bool:
        return any(self._is_token("authorization", value) for value in authorization) or any(
            self._is_token("x-api-key", value) for value in api_key
        )

    def _is_token(self, name: str, value: str) -> bool:
        if name == "authorization" and value[:7].lower() == "bearer ":
            value = value[7:]
        elif name != "x-api-key":
            return False
        # An empty token opens nothing.
        offered = value.strip().encode("utf-8", "surrogateescape")
        return bool(self._token) and hmac.compare_digest(offered, self._token)
