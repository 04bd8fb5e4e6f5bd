"""Watches the host's settings for as long as an agent lives, and tells every change of one as a security event."""

import asyncio
from collections.abc import Callable

from retinue.channel.messages import NodeNote
from retinue.node.host_settings import PERIOD_S, ROOT, Drift, DriftWatch, read_settings, write_baseline

ROLE = "security"


async def watch_settings(node_dir: str, say: Callable[[NodeNote], None], period_s: float = PERIOD_S) -> None:
    """Look at once and then every `period_s`, for ever; what changed before this agent started is told too."""
    try:
        seen = write_baseline(node_dir, ROOT)
    except OSError:
        # A full disk costs what an agent before this one knew, never the watch.
        seen = read_settings(root=ROOT)
    watch = DriftWatch(seen, ROOT)
    while True:
        for drift in watch.find_new():
            say(build_note(drift))
        await asyncio.sleep(period_s)


def build_note(drift: Drift) -> NodeNote:
    """Say what changed, before and after."""
    before, now = drift.before or "not there", drift.now or "not there"
    return NodeNote(f"HostSettingChanged {drift.name}", f"it was {before!r} and is {now!r}", ROLE)
