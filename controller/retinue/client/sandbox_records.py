"""What a sandbox says of its commands, processes and files. Pure records; a test compares them with the service's."""

import base64
import binascii
from enum import Enum

from retinue.client.answer import Broken
from retinue.terms.record import DecodeError, Record, from_json


class EndKind(str, Enum):
    """How a command ended; all of them are the policy's own doing."""

    EXITED = "exited"
    """By itself, with `code`; 127 and 126 also when it could not be run, as in a shell."""
    SIGNALLED = "signalled"
    """By `signal`, its own or one that was sent."""
    TIMED_OUT = "timed_out"
    """It ran past its limit of wall or CPU time; its whole tree was ended, and what it wrote is here."""
    MEMORY_EXCEEDED = "memory_exceeded"
    """The sandbox used more memory than it has; everything in it was ended."""
    DISK_FULL = "disk_full"
    """It failed, and the sandbox had no room left for bytes or files."""


INFRA_FAILED = "infra_failed"


class Output(Record, frozen=True):
    """What a stream carried: its beginning and its end."""

    head: bytes = b""
    """All of it, when nothing was dropped."""
    tail: bytes = b""
    dropped_bytes: int = 0
    """Between the two."""
    total_bytes: int = 0

    @property
    def raw(self) -> bytes:
        """What was kept, end to end."""
        return self.head + self.tail

    @property
    def text(self) -> str:
        """As text, with a line that says what was dropped; bytes that are no UTF-8 become U+FFFD."""
        head, tail = self.head.decode(errors="replace"), self.tail.decode(errors="replace")
        return f"{head}\n[{self.dropped_bytes} bytes dropped]\n{tail}" if self.dropped_bytes else head + tail


class Ended(Record, frozen=True):
    """How a command ended, and what it left to read."""

    outcome: EndKind
    code: int | None = None
    signal: int | None = None
    stdout: Output = Output()
    stderr: Output = Output()
    """Both empty after a stream: its pieces had them."""
    cause: str = ""
    """Which limit it was, or why it could not be run."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    max_rss_bytes: int = 0
    """Of its largest process."""
    left: int = 0
    """Processes that outlived being killed, because the kernel held them."""
    node: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether it exited with 0."""
        return self.outcome is EndKind.EXITED and self.code == 0


class Piece(Record, frozen=True):
    """A part of a stream, as it came."""

    stream: str
    """`stdout` or `stderr`."""
    raw: bytes

    @property
    def text(self) -> str:
        """As text; a character that was cut at the end of a piece becomes U+FFFD."""
        return self.raw.decode(errors="replace")


class Running(Record, frozen=True):
    """A background process as it is now."""

    name: str
    argv: tuple[str, ...]
    is_running: bool
    started_utc: float
    stdout: Output = Output()
    stderr: Output = Output()
    ended: Ended | None = None
    """None while it runs."""


class Stretch(Record, frozen=True):
    """A part of what a background process wrote."""

    raw: bytes
    offset: int
    """Of the first byte here; larger than asked for when what was there is not kept any more."""
    next_offset: int
    total_bytes: int
    is_running: bool


class Entry(Record, frozen=True):
    """One file, directory, link or what else has a name."""

    name: str
    type: str
    """`file` | `directory` | `link` | `fifo` | `socket` | `device`."""
    size: int = 0
    mode: int = 0
    mtime: float = 0.0
    """Seconds since 1970."""
    target: str = ""
    """Of a link."""
    name_base64: str = ""
    """The exact bytes of a name that is no UTF-8."""


class Uploaded(Record, frozen=True):
    """What was unpacked."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0
    skipped: int = 0
    """Devices and FIFOs, which are never made."""
    skipped_names: tuple[str, ...] = ()
    """The first few of them."""


class Made(Record, frozen=True):
    """Answer to a create."""

    id: str
    node: str = ""
    image: str = ""
    wait_s: float = 0.0
    """For room."""
    start_s: float = 0.0
    """For everything else."""
    created_utc: float = 0.0
    expires_utc: float = 0.0
    is_new: bool = True


class _Output(Record, frozen=True):
    encoding: str = "utf-8"
    head: str = ""
    tail: str = ""
    dropped_bytes: int = 0
    total_bytes: int = 0


class Result(Record, frozen=True):
    """An end as it travels."""

    outcome: str | None
    """None: it still runs."""
    code: int | None = None
    signal: int | None = None
    stdout: _Output | None = None
    stderr: _Output | None = None
    cause: str = ""
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    wall_s: float = 0.0
    left: int = 0
    node: str = ""


class View(Record, frozen=True):
    """A background process as it travels."""

    process: str
    argv: tuple[str, ...] = ()
    state: str = "running"
    started_utc: float = 0.0
    result: Result | None = None


class Line(Record, frozen=True):
    """One line of a streamed command."""

    stream: str = ""
    encoding: str = "utf-8"
    data: str = ""
    end: Result | None = None


def build_ended(result: Result) -> Ended:
    """Build what the caller is given.

    Errors: Broken when it is no end.
    """
    try:
        outcome = EndKind(result.outcome)
    except ValueError:
        raise Broken(f"unreadable result: outcome {result.outcome!r}") from None
    return Ended(
        outcome,
        result.code,
        result.signal,
        build_output(result.stdout),
        build_output(result.stderr),
        result.cause,
        result.cpu_s,
        result.wall_s,
        result.max_rss_bytes,
        result.left,
        result.node,
    )


def build_running(view: View) -> Running:
    """Build what the caller is given of a background process."""
    result = view.result or Result(None)
    ended = build_ended(result) if view.state != "running" and result.outcome != INFRA_FAILED else None
    stdout, stderr = build_output(result.stdout), build_output(result.stderr)
    return Running(view.process, view.argv, view.state == "running", view.started_utc, stdout, stderr, ended)


def build_output(output: _Output | None) -> Output:
    """Turn a stream's parts into bytes."""
    if output is None:
        return Output()
    head, tail = decode_text(output.encoding, output.head), decode_text(output.encoding, output.tail)
    return Output(head, tail, output.dropped_bytes, output.total_bytes)


def decode_text(encoding: str, text: str) -> bytes:
    """Turn text of an answer into the bytes it stands for.

    Errors: Broken.
    """
    if encoding == "utf-8":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Broken(f"unreadable output: encoding {encoding[:20]!r}") from None


def parse_line(line: bytes) -> Piece | Result:
    """Parse one line of a streamed command.

    Errors: Broken.
    """
    try:
        found = from_json(line, Line)
    except DecodeError as error:
        raise Broken(f"unreadable line: {error}") from None
    return found.end if found.end is not None else Piece(found.stream, decode_text(found.encoding, found.data))
