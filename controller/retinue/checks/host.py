"""Runs every check in a child of its own and says what became of it.

A check ends with exactly one outcome, whatever happens to it, to its child, to the
warm parent or to its caller. A slot is free as soon as its conversation is over.
"""

import asyncio
import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from retinue.checks.attempt import Attempt, run_attempt
from retinue.checks.judgement import Judgement, judge_second
from retinue.checks.ledger import Ledger
from retinue.checks.nursery import Nursery
from retinue.checks.queue import FairQueue
from retinue.checks.quarantine import Quarantine
from retinue.checks.records import CheckRequest, Limits
from retinue.checks.settings import Settings
from retinue.checks.tally import Tally
from retinue.checks.warm_link import WARM_ARGV
from retinue.checks.watch import Watch
from retinue.terms.outcome import Outcome, OutcomeKind
from retinue.terms.record import replace
