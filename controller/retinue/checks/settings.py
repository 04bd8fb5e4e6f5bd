"""How a checks service was told to run, and the units people write it in."""

import os
import re

from retinue.checks.records import Limits, WarmConfig
from retinue.terms.record import Record

_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
NAME = re.compile(r"[A-Za-z_][\w.-]*")
SPARES_EXTRA = 2
"""Beyond one per worker: a burst after a burst finds some."""


class Settings(Record, frozen=True):
    """Everything the host needs to know."""

    config: WarmConfig
    workers: int
    """Checks that run at once."""
    queue: int = 10_000
    """Checks that wait at most, all callers together."""
    queue_bytes: int = 512 * 2**20
    """What they may weigh together."""
    patience_s: float = 60.0
    """How long a check waits while no warm parent runs; waiting behind other checks is not counted."""
    service: str = "checks"
    node: str = ""
    incarnation: str = ""
    """`checks/0#2`."""
    ledger_path: str = ""
    """File of the run that outages are appended to; empty outside a run."""
    sign_path: str = ""
    """File in the node directory that is touched while the host lives; empty outside a run."""

    @property
    def replica(self) -> str:
        """`checks/0`; empty outside a run."""
        return self.incarnation.partition("#")[0]

    @property
    def limits(self) -> Limits:
        return self.config.limits

    @property
    def spares(self) -> int:
        return self.workers + SPARES_EXTRA


def parse_duration(text: str) -> float:
    """Turn `10s`, `500ms`, `2m` into seconds.

    Errors: ValueError says what is written instead.
    """
    return _parse(text, _DURATIONS, "10s")


def parse_size(text: str) -> int:
    """Turn `2GiB` into bytes.

    Errors: ValueError says what is written instead.
    """
    return int(_parse(text, _SIZES, "2GiB"))


def parse_verifier(text: str) -> tuple[str, str]:
    """Turn `name=module:function` into its two halves.

    Errors: ValueError says what is written instead.
    """
    name, mark, target = text.partition("=")
    if not mark or not NAME.fullmatch(name.strip()) or not TARGET.fullmatch(target.strip()):
        raise ValueError(f"{text!r} is not a verifier; write it like 'mine=my_module:check'")
    return name.strip(), target.strip()


def count_cpus() -> int:
    """Count the CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def _parse(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", text.strip(), re.ASCII)
    if match is None or match[2] not in units or not float(match[1]):
        raise ValueError(f"{text!r} has no meaning here; write it like {example!r} ({', '.join(units)})")
    return float(match[1]) * units[match[2]]
