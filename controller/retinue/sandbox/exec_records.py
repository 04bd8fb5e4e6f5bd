"""A command as a caller asks for it, and what became of it. Pure records."""

from enum import StrEnum

from retinue.terms.record import Record

OUTPUT_MAX_BYTES = 64 * 2**20
"""Kept of one stream at most, whatever is asked."""
ENV_MAX_COUNT = 4096


class ExecOutcome(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    """By itself; `code` says how. Also when it could not be run: 127 not found, 126 anything else, as in a shell."""
    SIGNALLED = "signalled"
    """By a signal, its own or one that a caller sent."""
    TIMED_OUT = "timed_out"
    """It ran past its wall or CPU limit; its whole tree was ended."""
    MEMORY_EXCEEDED = "memory_exceeded"
    """The sandbox went over its memory limit; everything in it was ended for it."""
    DISK_FULL = "disk_full"
    """It failed, and the sandbox had no room left for bytes or files."""
    INFRA_FAILED = "infra_failed"
    """Our side failed. Nothing that runs in a sandbox brings this about."""


class KeptBytes(Record, frozen=True):
    """How much of a stream is kept."""

    head: int = 0
    tail: int = 0


class ExecRequest(Record, frozen=True):
    """Body of `POST .../exec`."""

    argv: list[str] = []
    script: str | None = None
    """Instead of argv: text for `shell`, of any length."""
    shell: str = "/bin/sh"
    cwd: str | None = None
    """None: the sandbox's workdir."""
    env: dict[str, str] = {}
    """Over the sandbox's own."""
    stdin: str | None = None
    stdin_base64: bytes | None = None
    """Instead of stdin, for bytes that are no text. Neither: empty."""
    stdin_open: bool = False
    """Background only: more may come."""
    timeout_s: float | None = None
    """None: the sandbox's wall limit, which is the most; in the background: none."""
    cpu_s: float | None = None
    """None: the sandbox's limit."""
    output: KeptBytes | int | None = None
    """Bytes kept of each stream; a number: half at the head, half at the tail."""
    background: bool = False
    keep_tree: bool = False
    """What it leaves running lives on."""
    stream: bool = False
    key: str | None = None
    """A repeated request with the same key joins the first, or gets what that got."""


class Output(Record, frozen=True, omit_defaults=False):
    """What a stream carried: its beginning and its end."""

    encoding: str
    """`utf-8` or `base64`, of both parts."""
    head: str
    """All of it, when nothing was dropped."""
    tail: str
    dropped_bytes: int
    total_bytes: int


class ExecResult(Record, frozen=True, omit_defaults=False):
    """What became of a command."""

    outcome: ExecOutcome | None
    """None: it still runs."""
    code: int | None = None
    signal: int | None = None
    stdout: Output | None = None
    """None in a streamed answer's end."""
    stderr: Output | None = None
    cause: str = ""
    """In words: why it could not be run, what failed on our side, or which limit it was."""
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    """Of its largest process."""
    wall_s: float = 0.0
    left: int = 0
    """Processes that outlived being killed: the kernel held them."""
    node: str = ""


class ProcessView(Record, frozen=True, omit_defaults=False):
    """A background command as callers see it."""

    process: str
    """`p1`."""
    argv: list[str]
    state: str
    """`running` | `ended`."""
    started_utc: float
    result: ExecResult | None = None
