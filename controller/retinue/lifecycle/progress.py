"""Whether an engine gets on with its work: what it was seen to do, against what it did before. Pure.

Work without a token for `stall_s` is a failure, however healthy the server around it
looks; tokens that advance are proof of life, however slow that server answers; no
work is fine. Each part of an engine (vLLM's engines, SGLang's ranks) is looked at by itself:
one that hangs must not hide behind one that does not.
"""

from collections.abc import Mapping

from retinue.terms.record import Record, replace
from retinue.terms.replica import Verdict

SILENT_STALLS = 2.0
"""An engine that has not told for so many `stall_s` what it does is taken for dead: with the stall of a minute it is
restarted within three."""


class Sample(Record, frozen=True):
    """What one part of an engine was seen to do."""

    running: float = 0.0
    waiting: float = 0.0
    marks: tuple[float, ...] = ()
    """Counters of tokens: when any is another than before, work got on."""


class Part(Record, frozen=True):
    """One part of an engine, over time."""

    sample: Sample
    moved_s: float
    """When it last got on, or had nothing to do."""


class Progress(Record, frozen=True):
    """One engine, over time. Frozen; `observe` returns the next one."""

    stall_s: float
    heard_s: float
    """When it last told what it does."""
    parts: dict[str, Part] = {}

    def observe(
        self, samples: Mapping[str, Sample] | None, now_s: float, cause: str = ""
    ) -> tuple["Progress", Verdict, str]:
        """Take what it told now; None: it told nothing, and why.

        Shape:  (the next one, verdict, why it is not PASS).
        """
        if samples is None:
            silent_s = now_s - self.heard_s
            if silent_s < self.stall_s * SILENT_STALLS:
                return self, Verdict.UNKNOWN, cause
            return self, Verdict.FAIL, f"it has not told what it does for {silent_s:.0f} s: {cause}"
        parts = {name: _follow(self.parts.get(name), sample, now_s) for name, sample in samples.items()}
        after = replace(self, heard_s=now_s, parts=parts)
        stuck = [_describe(name, part, now_s) for name, part in parts.items() if now_s - part.moved_s >= self.stall_s]
        if stuck:
            return after, Verdict.FAIL, "; ".join(stuck)
        return after, Verdict.PASS, ""

    def restart(self, now_s: float) -> "Progress":
        """Begin to count anew: whoever looks was not awake himself."""
        parts = {name: replace(part, moved_s=now_s) for name, part in self.parts.items()}
        return replace(self, heard_s=now_s, parts=parts)


def _follow(before: Part | None, sample: Sample, now_s: float) -> Part:
    is_idle = sample.running <= 0 and sample.waiting <= 0
    if before is None or is_idle or sample.marks != before.sample.marks:
        return Part(sample, now_s)
    return Part(sample, before.moved_s)


def _describe(name: str, part: Part, now_s: float) -> str:
    which = f"part {name}: " if name else ""
    work = f"{part.sample.running:g} running, {part.sample.waiting:g} waiting"
    return f"{which}{work}, and no token for {now_s - part.moved_s:.0f} s"
