"""A host on a loaded node, and over thousands of checks: what is ours is never the policy's zero."""

import os
import time
from pathlib import Path

import pytest
from checks_scenes import FAKE_WARM, ask, build_settings, find_children, judge, real_host, until

from retinue.checks import spells, watch
from retinue.checks.host import Host
from retinue.checks.records import Limits
from retinue.terms.outage import Outage
from retinue.terms.outcome import OutcomeKind

SCORED = OutcomeKind.SCORED
LONG = Limits(wall_s=30.0, cpu_s=30.0, memory_bytes=256 * 2**20)


async def test_a_check_that_is_not_fresh_any_more_yields_to_those_that_are(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG)) as host:
        (slow,) = host.submit([ask("spin")], "test", 4)
        await until("it to run", lambda: any(r.child.pid for r in host.watch.running))
        own = os.getpriority(os.PRIO_PROCESS, 0)
        await until("it to be reniced", lambda: [nice(r.child.pid) for r in host.watch.running] == [own + 10])
        assert os.getpriority(os.PRIO_PROCESS, 0) == own
        host.cancel(slow)


async def test_a_stall_of_the_host_itself_times_nobody_out(tmp_path: Path) -> None:
    limits = Limits(wall_s=1.0, cpu_s=30.0, memory_bytes=256 * 2**20)
    async with real_host(build_settings(tmp_path, limits=limits)) as host:
        (check,) = host.submit([ask("wait 0.3")], "test", 8)
        await until("it to run", lambda: host.watch.running)
        # The loop stands still past the deadline, and so does everything that could be told in time.
        time.sleep(1.5)  # noqa: ASYNC251 - the stall is what is tested
        assert (await check.outcome).outcome is SCORED
        pressure = [entry for entry in host.ledger.read() if entry.cause == "node_pressure"]
        # On a crowded machine the entry had begun before the stall, and has another detail.
        assert any("own loop" in entry.detail or "run queue" in entry.detail for entry in pressure)


async def test_a_crowded_node_is_written_down_from_when_to_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [0]
    monkeypatch.setattr(spells, "CLOSE_AFTER_S", 0.3)
    monkeypatch.setattr(watch, "_read_running", lambda: running[0])
    async with real_host(build_settings(tmp_path), FAKE_WARM) as host:
        await until("a calm node", lambda: not host.watch.pressure.is_short)
        running[0] = 1000
        await until("it to be noticed", lambda: find_pressure(host))
        running[0] = 0
        await until("its end", lambda: find_pressure(host)[0].to_utc)
        entry = find_pressure(host)[0]
        assert (entry.cause, entry.node) == ("node_pressure", "n1")
        assert entry.to_utc is not None
        assert entry.from_utc < entry.to_utc <= time.time()


async def test_memory_and_descriptors_stay_flat_over_thousands_of_checks(tmp_path: Path) -> None:
    count = int(os.environ.get("SOAK_CHECKS", "2000"))
    async with real_host(build_settings(tmp_path)) as host:
        await judge(host, *(ask("right") for _ in range(300)))
        before = read_use(), len(os.listdir("/proc/self/fd"))
        for _ in range(count // 100):
            outcomes = await judge(host, *(ask("right") for _ in range(100)))
            assert {o.outcome for o in outcomes} == {SCORED}
        # Two processes of the warm parent, the spares, and a few that are being locked in or reaped.
        most = 2 + host.settings.spares + 6
        await until("all children to be let go", lambda: len(find_children()) <= most)
        after = read_use(), len(os.listdir("/proc/self/fd"))
    assert after[0] - before[0] < 8 * 2**20
    assert abs(after[1] - before[1]) <= 2 * host.settings.spares


def find_pressure(host: Host) -> list[Outage]:
    return [entry for entry in host.ledger.read() if "run queue" in entry.detail]


def nice(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def read_use() -> int:
    """Resident bytes of this process: the host's own."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
