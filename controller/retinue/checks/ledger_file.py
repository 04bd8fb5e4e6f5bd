"""The ledger on disk: `outages.jsonl` of the run, one line when an outage begins and one when it is over.

The line with a `to_utc` closes the one with the same service, node, cause and
`from_utc`. All checks of a run append to one file; a file system that hangs
costs lines, never a check.
"""

from collections.abc import Mapping
from pathlib import Path

from retinue.checks.ledger import Outage
from retinue.journal.writer import Writer
from retinue.terms.record import to_json
from retinue.terms.run import OUTAGES

CLOSE_S = 1.0


class LedgerFile:
    """Appends every change of a ledger; does nothing outside a run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writer = None if path is None else Writer()

    def write(self, outage: Outage) -> None:
        """Queue one line; never waits."""
        if self._writer is not None and self._path is not None:
            self._writer.append(self._path, to_json(outage) + b"\n", is_vital=True)

    def close(self) -> None:
        """Wait a moment for what is queued."""
        if self._writer is not None:
            self._writer.stop(CLOSE_S)


def find_ledger_path(env: Mapping[str, str]) -> Path | None:
    """Find the file beside the run's endpoints; None outside a run."""
    endpoints = env.get("RETINUE_ENDPOINTS", "")
    return Path(endpoints).with_name(OUTAGES) if endpoints else None
