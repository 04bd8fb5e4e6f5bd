"""The ledger on disk: `outages.jsonl` of the run, one line when an outage begins and one when it is over.

The line with a `to_utc` closes the one with the same service, node, replica, cause and
`from_utc`. All checks of a run append to one file; a file system that hangs
costs lines, never a check.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from retinue.journal.writer import Writer
from retinue.terms.outage import REPLICA_DOWN, Outage, merge_outages
from retinue.terms.record import to_json
from retinue.terms.run import OUTAGES

CLOSE_S = 1.0


class LedgerFile:
    """Appends every change of a ledger; does nothing outside a run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writer = None if path is None else Writer()
        self._found: list[Outage] = []

    def write(self, outage: Outage) -> None:
        """Queue one line; never waits."""
        if self._writer is not None and self._path is not None:
            self._writer.append(self._path, to_json(outage) + b"\n", is_vital=True)

    def read_left_open(self, service: str, replica: str, before_utc: float) -> None:
        """Begin to read what a predecessor left open, in the writer's thread: reading may hang too.

        Shape:  only what began before `before_utc`: what is younger is the caller's own.
        """
        path = self._path
        if self._writer is None or path is None:
            return

        def read() -> None:
            # Kept, not sent: that thread has descriptors of its own, and a loop is woken by one of the others.
            self._found = find_left_open(_read_lines(path), service, replica, before_utc)

        self._writer.call(f"read {path}", read)

    def take_left_open(self) -> list[Outage]:
        """Take what was found by now; a second time there is nothing."""
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Wait a moment for what is queued."""
        if self._writer is not None:
            self._writer.stop(CLOSE_S)


def find_left_open(lines: Iterable[bytes], service: str, replica: str, before_utc: float) -> list[Outage]:
    """Find the outages of one replica that have a beginning and no end.

    Shape:  in the order of the file; a line that cannot be read (it was torn) counts as not there.
    """
    return [
        outage
        for outage in merge_outages(lines)
        if (outage.service, outage.replica) == (service, replica)
        and outage.to_utc is None
        and outage.cause != REPLICA_DOWN  # The controller's own, and closed by it.
        and outage.from_utc < before_utc
    ]


def _read_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []


def find_ledger_path(env: Mapping[str, str]) -> Path | None:
    """Find the file beside the run's endpoints; None outside a run."""
    endpoints = env.get("RETINUE_ENDPOINTS", "")
    return Path(endpoints).with_name(OUTAGES) if endpoints else None


def find_sign_path(env: Mapping[str, str]) -> Path | None:
    """Find this replica's sign of life in the node directory; None outside a run."""
    node_dir, replica = env.get("RETINUE_NODE_DIR", ""), env.get("RETINUE_REPLICA", "")
    return Path(node_dir) / f"{replica.replace('/', '.')}.alive" if node_dir and replica else None
