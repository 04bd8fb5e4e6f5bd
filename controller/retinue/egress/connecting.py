"""A connect, done for the caller with the address that was checked.

Nothing here waits: a connect that takes time goes on in the kernel, and the caller's own call,
run again, waits for it as if it had begun it.
"""

import errno

from retinue.egress import sockets
from retinue.egress.notify import BEGUN, TIMED, Mark, Slate

GO_ON = -1
"""Not an errno: let the kernel run the caller's own call."""
_UNDER_WAY = frozenset({errno.EINPROGRESS, errno.EALREADY, errno.EINTR})


def connect_for(fd: int, address: bytes, is_stream: bool, slate: Slate, mark: Mark) -> int:
    """Connect the caller's socket, `fd` being our copy of it; returns what the call is to fail with, 0, or GO_ON.

    Shape: `mark` is what a supervisor that died had written about this very call; its state NOTHING: there was none.
    """
    is_second_try = mark.state != 0
    if is_second_try and mark.state == TIMED:
        sockets.write_send_timeout(fd, (mark.seconds, mark.microseconds))
    if not is_stream or not sockets.is_blocking(fd):
        slate.write_mark(mark._replace(state=BEGUN))
        return read_again(sockets.connect(fd, address), is_second_try, errno.EINPROGRESS)
    seconds, microseconds = sockets.read_send_timeout(fd)
    # On the slate first: whoever finds it there gives the socket its own timeout back.
    slate.write_mark(mark._replace(seconds=seconds, microseconds=microseconds, state=TIMED))
    sockets.write_send_timeout(fd)
    number = sockets.connect(fd, address)
    sockets.write_send_timeout(fd, (seconds, microseconds))
    if number in _UNDER_WAY:
        return GO_ON
    return read_again(number, is_second_try, GO_ON)


def read_again(number: int, is_second_try: bool, under_way: int) -> int:
    """Say what the first try would have: it may have happened, and its answer died with who tried."""
    if is_second_try and number == errno.EISCONN:
        return 0
    if is_second_try and number == errno.EALREADY:
        return under_way
    return number
