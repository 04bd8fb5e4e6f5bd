"""What an agent leaves for the next one: a file in the node directory.

The keeper remembers what runs; this remembers what was found out about it, so that
a restarted agent neither withdraws a ready replica nor forgets a stop. Written at once:
the node directory is local, and what a killed agent had still queued it would not know.
A loss (disk full) costs a few probes, never a wrong event.
"""

import os
from contextlib import suppress

from retinue.lifecycle.streak import ProbeState, build_probe_state
from retinue.terms.launch import LaunchSpec, ProbeKind
from retinue.terms.record import DecodeError, Record, from_json, replace, to_json
from retinue.terms.replica import Exited, LaunchRefused, Verdict

FILE = "agent.json"


class Note(Record, frozen=True):
    """Travels with the incarnation through the keeper: fixed at launch."""

    spec: LaunchSpec
    port: int | None
    host: str
    port_file: str
    inner_port: int | None = None
    """First of the block of ports it talks to itself by; None: it asked for none."""


class Remembered(Record, frozen=True):
    """One incarnation as it was last seen."""

    replica: str
    incarnation: int
    port: int | None = None
    started_s: float = 0.0
    """CLOCK_MONOTONIC of exec; comparable between processes of one boot."""
    is_startup_passed: bool = False
    is_ready: bool = False
    liveness_lost: str = ""
    """Why; empty: it is not lost."""
    stop_number: int = 0
    """Signal number of the stop under way; 0: none."""
    stop_deadline_s: float = 0.0
    """CLOCK_MONOTONIC at which its grace ends."""
    exited: Exited | None = None
    refused: LaunchRefused | None = None


class Memory(Record, frozen=True):
    """The whole file."""

    entries: tuple[Remembered, ...] = ()


def write_memory(node_dir: str, entries: tuple[Remembered, ...]) -> None:
    """Replace what the next agent will read; a disk that is full keeps the older file."""
    path = os.path.join(node_dir, FILE)
    with suppress(OSError):
        handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(to_json(Memory(entries)))
            while data:
                data = data[os.write(handle, data) :]
        finally:
            os.close(handle)
        os.replace(f"{path}.new", path)


def read_memory(node_dir: str) -> dict[tuple[str, int], Remembered]:
    """Read what the last agent left; empty when there is nothing that can be believed."""
    try:
        with open(os.path.join(node_dir, FILE), "rb") as file:
            memory = from_json(file.read(), Memory)
    except (OSError, DecodeError):
        return {}
    return {(entry.replica, entry.incarnation): entry for entry in memory.entries}


def resume_probes(spec: LaunchSpec, started_s: float, seen: Remembered | None) -> ProbeState:
    """Build the probes of an incarnation that an earlier agent started, settled as it had settled them."""
    if seen is None:
        return build_probe_state(spec.probes, spec.incarnation, started_s, is_readopted=True)
    state = build_probe_state(spec.probes, spec.incarnation, started_s, is_startup_passed=seen.is_startup_passed)
    streaks = dict(state.streaks)
    if seen.is_ready and ProbeKind.READINESS in streaks:
        streaks[ProbeKind.READINESS] = replace(streaks[ProbeKind.READINESS], settled=Verdict.PASS)
    if seen.liveness_lost and ProbeKind.LIVENESS in streaks:
        streaks[ProbeKind.LIVENESS] = replace(streaks[ProbeKind.LIVENESS], is_held=True)
    return replace(state, streaks=streaks)
