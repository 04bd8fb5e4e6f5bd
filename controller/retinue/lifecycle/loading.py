"""Whether a start still gets on, when it takes longer than its budget; and whether it still can. Pure.

A load of twenty minutes is no crash loop as long as it loads: it writes to its log, its
memory grows, it reads. A start whose loader died will never be ready: that is
known at once. Its longest time is the controller's timer, not counted here.
"""

from retinue.terms.record import Record, replace

QUIET_S = 120.0
"""Nothing loaded for so long is no progress; compilers of kernels are silent for a minute and more."""
LEAST_BYTES = 1 << 20
"""Growth of memory or of what was read that counts; an idle interpreter allocates a little, too."""
LEAST_FAULTS = 16
SEEN_DEAD = 2
"""Looks in a row that must find the same dead process: its parent may be about to take note of it."""


class Look(Record, frozen=True):
    """What the processes of a starting incarnation were seen to be."""

    log_bytes: int = 0
    """Written to its log so far."""
    memory_bytes: int = 0
    read_bytes: int = 0
    """Read so far, from wherever."""
    faults: int = 0
    """Pages that came from a disk so far."""
    dead: dict[int, str] = {}
    """pid -> how it died, of processes that ended badly and that nobody takes note of."""
    loaders: dict[int, str] = {}
    """pid -> name, of processes that an engine cannot be without."""


class Loading(Record, frozen=True):
    """One start, over time. Frozen; `observe` returns the next one."""

    budget_s: float
    """From `began_s`; after it a start must get on."""
    began_s: float
    moved_s: float
    """When it last got on."""
    last: Look = Look()
    memory_most_bytes: int = 0
    """When it last got on: memory that comes and goes is no progress."""
    read_bytes: int = 0
    """Read since it last got on; a process that ends takes its count with it, so only growth is added up."""
    faults: int = 0
    dead_seen: dict[int, int] = {}
    """pid -> looks in a row that found it dead, or gone."""
    loaders: dict[int, str] = {}

    def observe(self, look: Look, now_s: float) -> tuple["Loading", str]:
        """Take what was seen now.

        Shape: (the next one, why the start is to be given up; empty: it is not).
        """
        ended = look.dead | {pid: f"{name} is gone" for pid, name in self.loaders.items() if pid not in look.loaders}
        dead_seen = {pid: self.dead_seen.get(pid, 0) + 1 for pid in ended}
        after = replace(_measure(self, look, now_s), dead_seen=dead_seen, loaders=self.loaders | look.loaders)
        lost = [f"its process {pid} {ended[pid]}" for pid, times in dead_seen.items() if times >= SEEN_DEAD]
        if lost:
            return after, f"{lost[0]}, and the rest waits for it"
        late_s, quiet_s = now_s - self.began_s, now_s - after.moved_s
        if late_s < self.budget_s or quiet_s < QUIET_S:
            return after, ""
        return after, f"startup probe did not pass in {late_s:.0f} s, and nothing was loaded for {quiet_s:.0f} s"

    def restart(self, now_s: float) -> "Loading":
        """Count quiet time anew: whoever looks was not awake himself."""
        return replace(self, moved_s=now_s)


def _measure(before: Loading, look: Look, now_s: float) -> Loading:
    read_bytes = before.read_bytes + max(look.read_bytes - before.last.read_bytes, 0)
    faults = before.faults + max(look.faults - before.last.faults, 0)
    has_grown = look.memory_bytes >= before.memory_most_bytes + LEAST_BYTES
    has_said = look.log_bytes > before.last.log_bytes
    if has_grown or has_said or read_bytes >= LEAST_BYTES or faults >= LEAST_FAULTS:
        most = max(look.memory_bytes, before.memory_most_bytes)
        return replace(before, last=look, moved_s=now_s, memory_most_bytes=most, read_bytes=0, faults=0)
    return replace(before, last=look, read_bytes=read_bytes, faults=faults)
