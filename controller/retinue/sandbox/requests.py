"""What callers send to make a sandbox, checked; what a shard is told to make; and what is wrong in words. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from retinue.checks.settings import parse_duration, parse_size
from retinue.terms.record import Record, replace

KEY_MAX_CHARS = 200
LEASE_MIN_S, LEASE_MAX_S = 1.0, 7 * 24 * 3600.0
QUEUE_MAX_S = 24 * 3600.0
UID_MAX = 2**31 - 1
Quantity = int | float | str


class Fault(Exception):
    """A request that is answered with a typed error."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        cause: str = "",
        retry_after_s: int | None = None,
        position: int | None = None,
    ) -> None:
        self.status = status
        self.kind = kind
        self.cause = cause
        self.retry_after_s = retry_after_s
        self.position = position
        """How many creates wait before it."""
        super().__init__(message)


class ErrorWords(Record, frozen=True, omit_defaults=False):
    """What every error says."""

    type: str
    message: str
    service: str
    node: str
    retryable: bool
    cause: str = ""
    position: int | None = None


class ErrorBody(Record, frozen=True):
    """Body of an answer that is an error."""

    error: ErrorWords


class Limits(Record, frozen=True, omit_defaults=False):
    """What a sandbox may use."""

    disk: int = 256 * 2**20
    """Bytes written. A tmpfs: what is used is memory."""
    inodes: int = 65536
    memory: int = 512 * 2**20
    """Bytes of all its processes together."""
    pids: int = 256
    cpu: float = 0.0
    """Seconds of CPU time of one process; 0: as long as it may run."""
    wall: float = 3600.0
    """Seconds that one command may run."""
    output: int = 2**20
    """Bytes kept of each stream of a command, half at either end."""
    shm: int = 0
    """Bytes of /dev/shm apart from the disk; 0: within it."""

    @property
    def weight_bytes(self) -> int:
        """What it can take of the node's memory; files on a tmpfs are memory too."""
        return self.memory + self.disk + self.shm


@dataclass(frozen=True, slots=True)
class _Bound:
    kind: str
    least: float
    most: float
    may_be_zero: bool = False


BOUNDS = {
    "disk": _Bound("size", 2**20, 2**44),
    "inodes": _Bound("count", 256, 2**31),
    "memory": _Bound("size", 4 * 2**20, 2**44),
    "pids": _Bound("count", 2, 2**22),
    "cpu": _Bound("duration", 1.0, 7 * 24 * 3600.0, may_be_zero=True),
    "wall": _Bound("duration", 0.05, 7 * 24 * 3600.0),
    "output": _Bound("size", 0, 64 * 2**20),
    "shm": _Bound("size", 4096, 2**44, may_be_zero=True),
}
"""Limit -> what it may be. An overlay needs a few dozen files of its own, a shell two processes."""


class CreateRequest(Record, frozen=True):
    """Body of `POST /v1/sandboxes`."""

    image: str
    limits: dict[str, Quantity] = {}
    """By name; what is left out is the service's default."""
    env: dict[str, str] = {}
    workdir: str = "/"
    """Where its commands start; made if it is missing."""
    user: int | str = "root"
    hostname: str = "sandbox"
    net: bool = True
    """127.0.0.1 of its own; False: no sockets at all."""
    lease_s: Quantity | None = None
    key: str | None = None
    """The same key and contents give the same sandbox."""
    queue_s: Quantity | None = None
    """How long it may wait for room."""


class BoxOrder(Record, frozen=True):
    """What a shard is told to make."""

    zygote: int
    limits: Limits
    env: dict[str, str]
    workdir: str
    uid: int
    hostname: str
    net: bool


class BoxMade(Record, frozen=True):
    """What it says when it has."""

    start_s: float


def refuse(message: str) -> Fault:
    """Build the answer to a request that has no meaning."""
    return Fault(400, "sandbox_bad_request", message)


def parse_limits(given: dict[str, Quantity], defaults: Limits) -> Limits:
    """Lay what was given over the defaults.

    Errors: Fault 400 names the limit, and what it may be.
    """
    unknown = sorted(set(given) - set(BOUNDS))
    if unknown:
        raise refuse(f"cannot make a sandbox: limits.{unknown[0]} is unknown; there are {', '.join(BOUNDS)}")
    values = {name: parse_limit(f"limits.{name}", name, value) for name, value in given.items()}
    return replace(defaults, **values)


def parse_limit(where: str, name: str, value: Quantity) -> int | float:
    """Turn one limit into a number within its bounds. Errors: Fault 400."""
    bound = BOUNDS[name]
    number = parse_quantity(where, bound.kind, value)
    if not (bound.least <= number <= bound.most or (bound.may_be_zero and not number)):
        raise refuse(f"cannot use {where} of {value!r}: it is {bound.least:g} to {bound.most:g}")
    return number


def parse_quantity(where: str, kind: str, value: Quantity) -> int | float:
    """Turn `90s`, `1GiB` or a number into a number. Errors: Fault 400."""
    if isinstance(value, str):
        if kind == "count":
            raise refuse(f"cannot use {where} of {value!r}: it is a whole number")
        try:
            return parse_duration(value) if kind == "duration" else parse_size(value)
        except ValueError as error:
            raise refuse(f"cannot use {where}: {error}") from None
    if kind != "duration" and not float(value).is_integer():
        raise refuse(f"cannot use {where} of {value!r}: it is a whole number")
    return float(value) if kind == "duration" else int(value)


def parse_duration_within(where: str, value: Quantity | None, default_s: float, least_s: float, most_s: float) -> float:
    """Turn a duration into seconds within bounds. Errors: Fault 400."""
    seconds = default_s if value is None else float(parse_quantity(where, "duration", value))
    if not least_s <= seconds <= most_s:
        raise refuse(f"cannot use {where} of {value!r}: it is {least_s:g} to {most_s:g} s")
    return seconds


def parse_number(words: Mapping[str, str], name: str, default: float, most: float) -> float:
    """Read a number of a request's query. Errors: Fault 400."""
    text = words.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise refuse(f"cannot use {name} of {text[:40]!r}: it is a number from 0 to {most:g}")
    return number


def check_create(request: CreateRequest) -> int:
    """Check what is not a limit; gives the uid. Errors: Fault 400 names the field."""
    if not request.image or "\0" in request.image:
        raise refuse("cannot make a sandbox: image is empty; it is a name in the store or a path")
    if request.key is not None and not 0 < len(request.key) <= KEY_MAX_CHARS:
        raise refuse(f"cannot use key: it has 1 to {KEY_MAX_CHARS} characters")
    if not request.workdir.startswith("/") or "\0" in request.workdir:
        raise refuse(f"cannot use workdir {request.workdir[:100]!r}: it is an absolute path of the sandbox")
    if not 0 < len(request.hostname.encode()) <= 64 or not request.hostname.isprintable():
        raise refuse("cannot use hostname: it has 1 to 64 printable characters")
    check_env(request.env)
    if request.user == "root":
        return 0
    if isinstance(request.user, int) and 0 <= request.user <= UID_MAX:
        return request.user
    if isinstance(request.user, str) and request.user.isdigit() and int(request.user) <= UID_MAX:
        return int(request.user)
    raise refuse(f"cannot use user {request.user!r}: it is 'root' or a number")


def check_env(env: dict[str, str]) -> None:
    """Check names and values of an environment. Errors: Fault 400."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise refuse(f"cannot use env {name[:100]!r}: a name is not empty and has no '=', neither part has a NUL")
