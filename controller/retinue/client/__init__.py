"""What rollouts import: `from retinue.client import Retinue, SyncRetinue, Outcome`.

Promises that an outage is an outcome and never a score, that every wait has a
deadline and that no row is lost. Imports the standard library and the terms only.
"""

from retinue.client.endpoints import Endpoint
from retinue.client.question import Check
from retinue.client.rollouts import Retinue
from retinue.client.sync import SyncRetinue
from retinue.terms.outcome import SCORELESS, Outcome, OutcomeKind

__all__ = ["SCORELESS", "Check", "Endpoint", "Outcome", "OutcomeKind", "Retinue", "SyncRetinue"]
