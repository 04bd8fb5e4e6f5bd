"""What callers, the checks host, its warm parent and a check's child say to each other.

Host and warm parent: AF_UNIX SOCK_SEQPACKET, one JSON record a packet, descriptors
beside it. Host and child: a SOCK_STREAM socketpair of its own per child, 4-byte
big-endian length and JSON; nothing else in the child reaches the host.
"""

from typing import Any

from retinue.terms.record import Record


class CheckRequest(Record, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /v1/check`; `POST /v1/checks` takes {"checks": [CheckRequest, ...]}."""

    verifier: str
    response: str
    """The policy's output: hostile."""
    gold: Any = None
    """From the dataset: trusted to be meant well, not to be right."""
    args: dict[str, Any] = {}
    timeout_s: float | None = None
    """None: the verifier's own; capped by the service's limit."""
    rollout_id: str | None = None


class Limits(Record, frozen=True):
    """What one check may use; beyond it the policy's output is at fault."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_bytes: int = 2 * 1024**3
    """Address space of the child (RLIMIT_AS) beyond what the warm parent has."""
    tmp_bytes: int = 16 * 1024**2
    pids: int = 32
    output_bytes: int = 64 * 1024
    """Result and reason together."""


# --- warm parent -> host ------------------------------------------------------------


class FromWarm(Record, frozen=True, tag_field="w"):
    """One packet."""


class Warmed(FromWarm, frozen=True, tag=True):
    """All verifiers are imported and exercised; spares follow."""

    verifiers: dict[str, str]
    """Name -> one line of description."""
    rung: str
    """`namespaces`, or what is weaker and why."""


class Loading(FromWarm, frozen=True, tag=True):
    """What it does next, so that whoever ends it, or hangs, has a name."""

    verifier: str
    step: str
    """`import` or `warm`."""


class Broken(FromWarm, frozen=True, tag=True):
    """A verifier cannot be imported or exercised: the service must not become ready."""

    verifier: str
    cause: str


class Spare(FromWarm, frozen=True, tag=True):
    """A child that waits for its one check. Descriptors: [its socket, its pidfd]."""

    child: int


class Ended(FromWarm, frozen=True, tag=True):
    """A child was reaped, with its whole tree."""

    child: int
    code: int | None
    signal: int | None
    cpu_s: float
    max_rss_bytes: int


# --- host -> warm parent --------------------------------------------------------------


class Want(Record, frozen=True):
    """How many spares to keep; more are forked as they are taken (a child that read Prepare is taken)."""

    spares: int
    slow: list[int] = []
    """Children whose check is older than 200 ms: reniced (whole process group), so that fresh ones go first."""


class WarmConfig(Record, frozen=True):
    """The file (or descriptor) that `--config` names: read once at the start."""

    verifiers: dict[str, str]
    """Name -> `module:function`."""
    path: list[str] = []
    """Directories put in front of sys.path."""
    limits: Limits = Limits()
    """The service's: what a child may use at most; `Prepare.limits` only lowers them."""
    hide: list[str] = []
    """Directories and files no check may see (run directory, node directory), beside home, /tmp, /run, /proc, ..."""
    import_limit_s: float = 180.0
    """How long one verifier may take to be imported, and again to warm up; a cold shared file system takes minutes."""
    rung: str = ""
    """`fallback`: do not try namespaces (tests, an escape hatch)."""


# --- host <-> child ---------------------------------------------------------------------


class Prepare(Record, frozen=True):
    """First to the child: gold and arguments, before it has seen anything of the policy."""

    nonce: str
    verifier: str
    gold: Any
    args: dict[str, Any]
    limits: Limits


class Prepared(Record, frozen=True):
    """The child's answer: it is ready for the response, or gold and args are wrong."""

    nonce: str
    rejected: str | None = None


class Judge(Record, frozen=True):
    """Second to the child: the response. Its deadline starts now."""

    response: str


class Seal(Record, frozen=True):
    """Third to the child, sent right behind Judge: the nonce of the result.

    The child leaves it unread in the socket until the check has returned, so nothing that runs inside the
    check has it in memory; a result without exactly this nonce is a protocol violation (`killed`).
    """

    nonce: str
    """Fresh and secret; never the one of Prepare."""


class Judged(Record, frozen=True):
    """The child's one result; anything else it sends is a crash."""

    nonce: str
    """Seal's."""
    score: float
    reason: str = ""
    error: str | None = None
    """The verifier raised on this response: outcome `killed`, counted for the warning at 20 % of 50."""
    is_bug: bool = False
    """The error is one of the verifier itself: nothing to import, or no score was returned."""
