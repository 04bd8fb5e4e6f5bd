"""What dies under the sandbox service, and what that costs: its own sandboxes, typed, and nobody else's."""

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sandbox_scenes import is_alive, list_descendants, until
from sandbox_service import Refusal, Service, real_service

from retinue.node.host_settings import Drift
from retinue.sandbox import host_watch


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


def find_pids(name: str) -> list[int]:
    """Our descendants of this name, oldest first."""
    found = []
    for pid in list_descendants(os.getpid()):
        try:
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if comm == name and is_alive(pid):
            found.append(pid)
    return sorted(found)


async def start_sleeper(service: Service, name: str) -> "asyncio.Future[dict[str, Any]]":
    """A command that runs until something ends it; waits until it does."""
    await service.text(name, "mkfifo /up")
    running = asyncio.ensure_future(service.exec(name, "echo begun; echo up > /up; sleep 1000", timeout_s=60))
    assert await service.text(name, "cat /up") == "up"
    return running


async def find_kind(service: Service, name: str, script: str) -> str:
    """What a command is answered with: its outcome, or the kind of refusal."""
    try:
        return str((await service.exec(name, script))["outcome"])
    except Refusal as refusal:
        return refusal.kind


async def expect_lost(service: Service, name: str, words: str) -> None:
    refusal = await service.refusal("POST", f"/v1/sandboxes/{name}/exec", {"script": "true"})
    assert (refusal.status, refusal.kind, refusal.error["node"]) == (410, "infra_failed", "n1")
    assert words in refusal.error["cause"]


async def test_a_killed_shard_costs_its_own_sandboxes_and_comes_back(base: Path) -> None:
    async with real_service(base) as service:
        names = [await service.create() for _ in range(4)]
        slots = {name: service.host.seats.find(name).slot for name in names}
        victim = service.host.shards.slots[0]
        lost = [name for name in names if slots[name] is victim]
        kept = [name for name in names if slots[name] is not victim]
        assert len(lost) == len(kept) == 2
        running = asyncio.ensure_future(
            service.refusal("POST", f"/v1/sandboxes/{lost[0]}/exec", {"script": "sleep 99"})
        )
        sleeping = await start_sleeper(service, kept[0])
        inits = find_pids("sandbox-init")
        os.kill(victim.pid, signal.SIGKILL)
        refusal = await running
        assert (refusal.status, refusal.kind) == (410, "infra_failed")
        for name in lost:
            await expect_lost(service, name, "shard 0 died (signal SIGKILL)")
        assert await service.text(kept[1], "echo here") == "here"
        assert not sleeping.done()
        await service.ask("DELETE", f"/v1/sandboxes/{kept[0]}")
        with pytest.raises(Refusal):
            await sleeping
        await until(lambda: sum(is_alive(pid) for pid in inits) == 1)
        await until(lambda: victim.is_ready.is_set())
        again = await asyncio.gather(*(service.create() for _ in range(4)))
        assert {service.host.seats.find(name).slot for name in again} == set(service.host.shards.slots)
        assert await service.text(again[0], "echo here") == "here"
        assert service.host.budget.used.count == 5
        (outage,) = (await service.ask("GET", "/v1/outages"))["outages"]
        assert (outage["cause"], outage["to_utc"] is not None) == ("shard_down", True)


async def test_a_stopped_shard_is_killed_and_its_sandboxes_are_told_lost(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.sandbox.host_shards.SILENT_S", 1.0)
    monkeypatch.setattr("retinue.sandbox.host_shards.PING_S", 0.2)
    async with real_service(base, shards=1) as service:
        name = await service.create()
        (slot,) = service.host.shards.slots
        running = asyncio.ensure_future(service.refusal("POST", f"/v1/sandboxes/{name}/exec", {"script": "sleep 99"}))
        os.kill(slot.pid, signal.SIGSTOP)
        assert (await running).kind == "infra_failed"
        await expect_lost(service, name, "did not answer")
        assert await service.text(await service.create(), "echo here") == "here"


async def test_a_killed_zygote_costs_the_sandboxes_of_its_image_and_shard(base: Path) -> None:
    async with real_service(base) as service:
        running = {}
        for _ in range(2):
            name = await service.create()
            running[name] = await start_sleeper(service, name)
        (zygote, _) = find_pids("sandbox-zygote")
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: len(service.host.seats) == 1)
        (kept,) = [name for name in running if name in service.host.seats]
        (lost,) = set(running) - {kept}
        result = await running[lost]
        assert (result["outcome"], result["stdout"]["head"]) == ("infra_failed", "begun\n")
        assert "zygote" in result["cause"]
        assert not running[kept].done()
        assert await service.text(kept, "echo here") == "here"
        await service.ask("DELETE", f"/v1/sandboxes/{kept}")
        await asyncio.wait([running[kept]])
        assert isinstance(running[kept].exception(), Refusal)
        again = [await service.create() for _ in range(2)]
        assert [await service.text(name, "echo here") for name in again] == ["here"] * 2
        await expect_lost(service, lost, "zygote")
        await until(lambda: service.host.standing.lost["sandbox_lost"] == 1)
        assert await service.outage_causes() == ["sandbox_lost"]


async def test_a_killed_squashfuse_costs_the_sandboxes_of_its_image_and_the_next_create_works(base: Path) -> None:
    async with real_service(base) as service:
        names = [await service.create() for _ in range(4)]
        running = await start_sleeper(service, names[0])
        (daemon,) = find_pids("squashfuse_ll")
        os.kill(daemon, signal.SIGKILL)
        # Before anybody knows: what fails for want of its image is never the policy's failure.
        assert await find_kind(service, names[1], "cat /app/file; exit 3") == "infra_failed"
        result = await running
        assert (result["outcome"], result["stdout"]["head"]) == ("infra_failed", "begun\n")
        for name in names:
            await expect_lost(service, name, "squashfuse")
        assert await service.text(await service.create(), "cat /app/file") == "of the image"
        assert await service.outage_causes() == ["image_lost"]
        assert service.host.standing.lost["image_lost"] == 4
        assert service.host.budget.used.count == 1


async def test_a_killed_node_space_costs_all_sandboxes_and_is_made_again(base: Path) -> None:
    async with real_service(base) as service:
        names = [await service.create() for _ in range(3)]
        assert service.host.ground is not None
        old = service.host.ground.pid
        os.kill(old, signal.SIGKILL)
        # A create that finds it dying may still get a sandbox of it, which is then lost like the others.
        await until(lambda: service.host.ground is None or service.host.ground.pid != old)
        created = await service.create()
        assert await service.text(created, "echo here") == "here"
        for name in names:
            refusal = await service.refusal("GET", f"/v1/sandboxes/{name}")
            assert (refusal.status, refusal.kind) == (410, "infra_failed")
        assert service.host.ground.pid != old
        assert "space_down" in await service.outage_causes()
        assert service.host.budget.used.count == 1
        await until(lambda: len(find_pids("sandbox-init")) == 1)


async def test_a_first_process_killed_from_outside_is_ours_while_idle_and_never_ours_while_commands_run(
    base: Path,
) -> None:
    async with real_service(base) as service:
        idle = await service.create()
        (pid,) = find_pids("sandbox-init")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(service.host.seats) == 0)
        await expect_lost(service, idle, "first process ended")
        busy = await service.create()
        running = await start_sleeper(service, busy)
        (pid,) = find_pids("sandbox-init")
        os.kill(pid, signal.SIGKILL)
        assert (await running)["outcome"] == "memory_exceeded"
        refusal = await service.refusal("GET", f"/v1/sandboxes/{busy}")
        assert (refusal.status, refusal.kind) == (410, "sandbox_killed")


async def test_a_node_short_of_memory_ends_the_newest_large_sandbox_as_our_fault_and_holds_creates(base: Path) -> None:
    async with real_service(base) as service:
        old, new, small = [await service.create() for _ in range(3)]
        for name in (old, new):
            await service.text(name, "head -c 8M /dev/zero > /f")
        running = await start_sleeper(service, new)
        memory = service.host.memory
        available = [memory.least_bytes - 1]
        memory._read_available = lambda: available[0]
        await until(lambda: len(service.host.seats) == 2)
        available[0] = memory.least_bytes
        result = await running
        assert (result["outcome"], "short of memory" in result["cause"]) == ("infra_failed", True)
        await expect_lost(service, new, "short of memory")
        waiting = asyncio.ensure_future(service.create())
        await until(lambda: service.host.admission.queued_count == 1)
        assert not (await service.ask("GET", "/health"))["creates"]
        available[0] = 2 * memory.least_bytes
        assert await service.text(await waiting, "echo here") == "here"
        assert [await service.text(name, "echo here") for name in (old, small)] == ["here"] * 2
        assert await service.outage_causes() == ["node_memory"]


async def test_a_changed_host_setting_stops_creates_until_it_is_as_it_was(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Drift] = []
    monkeypatch.setattr(host_watch, "has_drifted", lambda baseline: tuple(found))
    monkeypatch.setattr(host_watch, "DRIFT_S", 0.05)
    async with real_service(base) as service:
        name = await service.create()
        found.append(Drift("kernel.core_pattern", "core", "|/tmp/evil"))
        await until(lambda: service.host.refusal)
        with pytest.raises(Refusal) as caught:
            await service.create()
        assert (caught.value.status, caught.value.kind) == (503, "infra_failed")
        assert "kernel.core_pattern was 'core' and is '|/tmp/evil'" in caught.value.error["cause"]
        assert await service.text(name, "echo here") == "here"
        found.clear()
        await until(lambda: not service.host.refusal)
        await service.create()
        assert await service.outage_causes() == ["host_settings"]


async def test_a_full_disk_and_a_full_shm_end_with_the_sandbox_and_give_the_memory_back(base: Path) -> None:
    async with real_service(base) as service:
        name = await service.create(limits={"shm": "4MiB"})
        result = await service.exec(name, "cat /dev/zero > /f")
        assert result["outcome"] == "disk_full"
        assert (await service.exec(name, "cat /dev/zero > /dev/shm/f; rm /f"))["code"] == 0
        assert await service.text(name, "wc -c < /dev/shm/f") == str(4 * 2**20)
        await service.text(name, "head -c 31M /dev/zero > /f")
        refusal = await service.refusal("PUT", f"/v1/sandboxes/{name}/file?path=/g", data=io.BytesIO(b"x" * 2**21))
        assert (refusal.status, refusal.error["cause"]) == (409, "disk_full")
