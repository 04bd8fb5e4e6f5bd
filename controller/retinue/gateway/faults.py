"""What went wrong between the gateway and a backend, in our words.

The one place that knows aiohttp's client errors. The question that matters is
whose fault it was: only a backend's own failures count against it.
"""

import errno
import os
import ssl
from enum import Enum

import aiohttp

OUR_SHORTAGE = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN, errno.EPERM)
)
"""connect() failed for want of something on this node, which says nothing of the backend."""


CAUSE_CHARS = 500
"""Of a cause that travels in a header."""


class Blame(str, Enum):
    """What a failed exchange means."""

    UNREACHED = "unreached"
    """No connection: the backend saw nothing, and is not there."""
    GONE = "gone"
    """As above, and it is certain: nobody listens at its port any more, or another incarnation does."""
    BROKEN = "broken"
    """The connection ended before the answer began: the backend may have seen the request."""
    LATE = "late"
    """It said nothing for as long as the service may be silent: as above, and asking again costs that time again."""
    GARBLED = "garbled"
    """It answered, but not in HTTP that can be passed on; asking again gives the same."""
    OURS = "ours"
    """This gateway lacked something (descriptors, ports, memory)."""
    CALLER = "caller"
    """The request itself cannot be sent on, or its body broke off."""


UNSEEN = (Blame.UNREACHED, Blame.GONE)


class Fault(Exception):
    """One exchange with a backend failed before its answer began."""

    def __init__(self, blame: Blame, cause: str) -> None:
        self.blame = blame
        super().__init__(cause)


BLAMES: tuple[tuple[type[Exception], Blame], ...] = (
    (aiohttp.ClientConnectorError, Blame.UNREACHED),
    (aiohttp.ConnectionTimeoutError, Blame.UNREACHED),
    (aiohttp.SocketTimeoutError, Blame.LATE),
    (aiohttp.ClientResponseError, Blame.GARBLED),
    (aiohttp.ClientPayloadError, Blame.GARBLED),
    (aiohttp.ClientConnectionError, Blame.BROKEN),
    (OSError, Blame.BROKEN),
    (ValueError, Blame.CALLER),
    (aiohttp.ClientError, Blame.GARBLED),
)
"""First match counts; the most special classes stand first. ValueError: control characters in what was to be sent."""


def translate_error(error: Exception) -> Fault:
    """Translate whatever the client raised while asking, up to the answer's headers."""
    # OpenSSL's own numbers are no errno.
    number = error.errno if isinstance(error, OSError) and not is_tls(error) else None
    blame = next(blame for kind, blame in BLAMES if isinstance(error, kind))
    if blame in (Blame.UNREACHED, Blame.BROKEN) and number in OUR_SHORTAGE:
        blame = Blame.OURS
    if blame is Blame.UNREACHED and number == errno.ECONNREFUSED:
        blame = Blame.GONE
    return Fault(blame, _read_cause(error, number))


def translate_connect_error(error: OSError) -> Fault:
    """Translate why there is no connection to a backend; a timeout of ours has no errno."""
    if error.errno is None or error.errno == errno.ETIMEDOUT:
        return Fault(Blame.UNREACHED, "connect timed out")
    refused = Blame.GONE if error.errno == errno.ECONNREFUSED else Blame.UNREACHED
    return Fault(Blame.OURS if error.errno in OUR_SHORTAGE else refused, os.strerror(error.errno).lower())


def translate_way_error(error: Exception) -> Fault:
    """Translate what was raised on the way to another node's gateway: of the backend itself it says nothing."""
    fault = translate_error(error)
    return Fault(Blame.UNREACHED, str(fault)) if fault.blame is Blame.GONE else fault


def is_tls(error: Exception) -> bool:
    """Tell whether it was TLS that failed, and not the connection below it."""
    met = (error, error.__cause__, getattr(error, "os_error", None))
    return any(isinstance(one, ssl.SSLError | ssl.CertificateError) for one in met)


def _read_cause(error: Exception, number: int | None) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connect timed out"
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if is_tls(error):
        return _read_tls_cause(error)
    if number is not None:
        return os.strerror(number).lower()
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection before it answered"
    # Nothing of the answer itself: it may hold what a log must not.
    return f"unreadable exchange ({type(error).__name__})"


def _read_tls_cause(error: Exception) -> str:
    """Say what TLS said, without the place in OpenSSL's source."""
    met = next(one for one in (error.__cause__, error) if one is not None)
    text = getattr(met, "reason", None) or str(met)
    return f"no TLS with the run's node there: {str(text).lower().replace('_', ' ')}"


def build_fault(fault: Fault) -> str:
    """Say a fault in a header, for the gateway of another node."""
    words = "".join(letter if letter.isprintable() and letter.isascii() else "?" for letter in str(fault))
    return f"{fault.blame.value} {words[:CAUSE_CHARS]}"


def parse_fault(said: str) -> Fault:
    """Read what another node's gateway said of its replica; what cannot be read counts as broken."""
    word, _, cause = said.partition(" ")
    try:
        return Fault(Blame(word), cause)
    except ValueError:
        return Fault(Blame.BROKEN, "its node's gateway said what this one does not understand")
