"""What rollouts import: `from retinue.client import Retinue, SyncRetinue, Outcome`.

Promises that an outage is an outcome and never a score (of a sandbox: `SandboxLost`), that every wait has a
deadline and that no row is lost. Imports the standard library and the terms only.
"""

from retinue.client.endpoints import Endpoint
from retinue.client.judge_records import Judged, JudgedKind
from retinue.client.question import Check
from retinue.client.retrieval_records import Passage, Retrieved, RetrievedKind
from retinue.client.rollouts import Retinue
from retinue.client.sandbox import Sandbox
from retinue.client.sandbox_errors import (
    SandboxGone,
    SandboxKilled,
    SandboxLost,
    SandboxNoFile,
    SandboxRefused,
    SandboxUnsure,
)
from retinue.client.sandbox_process import CommandStream, Process
from retinue.client.sandbox_records import Ended, EndKind, Entry, Output, Piece, Running, Stretch, Uploaded
from retinue.client.sandbox_sync import SyncSandbox
from retinue.client.sync import SyncRetinue
from retinue.terms.outcome import SCORELESS, Outcome, OutcomeKind

__all__ = [
    "SCORELESS",
    "Check",
    "CommandStream",
    "EndKind",
    "Ended",
    "Endpoint",
    "Entry",
    "Judged",
    "JudgedKind",
    "Outcome",
    "OutcomeKind",
    "Output",
    "Passage",
    "Piece",
    "Process",
    "Retinue",
    "Retrieved",
    "RetrievedKind",
    "Running",
    "Sandbox",
    "SandboxGone",
    "SandboxKilled",
    "SandboxLost",
    "SandboxNoFile",
    "SandboxRefused",
    "SandboxUnsure",
    "Stretch",
    "SyncRetinue",
    "SyncSandbox",
    "Uploaded",
]
