"""One line on stderr per thing that went wrong; never a token, a body, or a flood."""

import logging
import time
from pathlib import PurePath

log = logging.getLogger("retinue.gateway")

LINES_PER_S = 20
"""A backend that is down fails every request: the first lines say it all."""


class OneLine(logging.Formatter):
    """Message, and for an exception its type and place; its text may quote a request, so it stays out."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = f" at {PurePath(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
            text = f"{text}: {type(error).__name__}{where}"
        return "retinue gateway: " + text.replace("\r", " ").replace("\n", " ")


class Sparing(logging.Filter):
    """Lets so many lines per second through and says how many it kept back."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._count = 0
        self._kept_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            if self._kept_back:
                record.msg = f"{record.getMessage()} ({self._kept_back} lines before this one were kept back)"
                record.args = ()
            self._second, self._count, self._kept_back = second, 0, 0
        self._count += 1
        if self._count <= LINES_PER_S:
            return True
        self._kept_back += 1
        return False


def install_notes() -> None:
    """Send this room's lines, and those of the HTTP server under it, to stderr."""
    # A reader of stderr that went away must not become a traceback per line.
    logging.raiseExceptions = False
    channel = logging.StreamHandler()
    channel.setFormatter(OneLine())
    channel.addFilter(Sparing())
    log.handlers[:] = [channel]
    log.propagate = False
    log.setLevel(logging.INFO)
