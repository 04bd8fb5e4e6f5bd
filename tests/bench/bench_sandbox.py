"""What a sandbox costs: create, exec, destroy, memory, beside plain fork+exec on the same machine at the same time.

Run: `PYTHONPATH=controller:tests/edge python tests/bench/bench_sandbox.py`, as an ordinary user. Complete isolation
(every namespace, overlay on a plain directory, filter), driven from one asyncio loop. Not a test: asserts nothing.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from sandbox_scenes import Scene, get_program, make_image, open_scene

from retinue.sandbox.box import Box
from retinue.sandbox.config import BoxConfig

ROUNDS = 300
IN_FLIGHT = 16
IDLE = 200
SUSTAINED_S = 10.0


def say(what: str, took_s: list[float], more: str = "") -> None:
    ordered = sorted(took_s)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{what:34} p50 {p50 * 1e3:7.2f} ms   p99 {p99 * 1e3:7.2f} ms   {more}")


async def measure(action: Callable[[], Awaitable[object]], into: list[float]) -> object:
    started = time.perf_counter()
    result = await action()
    into.append(time.perf_counter() - started)
    return result


async def live_once(scene: Scene, config: BoxConfig, took: dict[str, list[float]]) -> None:
    zygote = await scene.find_zygote(config)
    box = await measure(lambda: zygote.create(config), took["create"])
    assert isinstance(box, Box)
    await measure(lambda: box.start(["/bin/true"]).wait(), took["exec"])
    box.close()
    await measure(lambda: box.gone, took["destroy"])


async def one_after_another(scene: Scene, config: BoxConfig, name: str) -> None:
    took: dict[str, list[float]] = {"create": [], "exec": [], "destroy": []}
    for _ in range(ROUNDS):
        await live_once(scene, config, took)
    for step, seconds in took.items():
        say(f"{step}, {name}", seconds)


async def many_at_once(scene: Scene, config: BoxConfig, name: str) -> None:
    took: list[float] = []
    boxes: list[Box] = []
    zygote = await scene.find_zygote(config)

    async def create_some() -> None:
        for _ in range(ROUNDS // IN_FLIGHT * 2):
            box = await measure(lambda: zygote.create(config), took)
            assert isinstance(box, Box)
            boxes.append(box)

    started = time.perf_counter()
    await asyncio.gather(*(create_some() for _ in range(IN_FLIGHT)))
    spent = time.perf_counter() - started
    say(f"create, {name}, {IN_FLIGHT} in flight", took, f"{len(took) / spent:.0f}/s")
    await destroy(boxes, name)


async def destroy(boxes: list[Box], name: str) -> None:
    started = time.perf_counter()
    for box in boxes:
        box.close()
    await asyncio.gather(*(box.gone for box in boxes))
    spent = time.perf_counter() - started
    print(f"{'destroy all, ' + name:34} {spent * 1e3:.0f} ms for {len(boxes)}")


async def sustained(scene: Scene, config: BoxConfig, name: str) -> None:
    took: dict[str, list[float]] = {"create": [], "exec": [], "destroy": []}
    ends = time.perf_counter() + SUSTAINED_S

    async def work() -> None:
        while time.perf_counter() < ends:
            await live_once(scene, config, took)

    await asyncio.gather(*(work() for _ in range(8)))
    creates = took["create"]
    tenth = max(1, len(creates) // 10)
    drift = statistics.median(creates[-tenth:]) / statistics.median(creates[:tenth])
    say(f"sustained create, {name}, 8 in flight", creates, f"{len(creates) / SUSTAINED_S:.0f}/s, drift {drift:.2f}x")


def read_free_kib() -> int:
    return int(Path("/proc/meminfo").read_text().split("MemFree:")[1].split()[0])


def read_pss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("Pss:")[1].split()[0])


async def idle_memory(scene: Scene, config: BoxConfig, name: str) -> None:
    zygote = await scene.find_zygote(config)
    before = read_free_kib()
    boxes = [await zygote.create(config) for _ in range(IDLE)]
    each = (before - read_free_kib()) / IDLE
    try:
        pss = f"{read_pss_kib(boxes[0].pid)} KiB"
    except OSError as error:
        pss = f"not readable ({error.strerror}: it is undumpable)"
    print(f"{'idle, ' + name:34} {each:.0f} KiB of MemFree each over {IDLE} (others run too); PSS of one pid 1: {pss}")
    await destroy(boxes, name)


def plain() -> None:
    took = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        took.append(time.perf_counter() - started)
    say("posix_spawn /bin/true, no sandbox", took)


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        program, image = get_program(Path(folder)), make_image(Path(folder) / "image")
        size_kib = program.stat().st_size // 1024
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} CPUs, load {load:.1f}, Linux {os.uname().release}, program {size_kib} KiB")
        plain()
        async with open_scene(program, image) as scene:
            for name, config in (("full", BoxConfig()), ("no netns", BoxConfig(has_net=False))):
                await one_after_another(scene, config, name)
                await many_at_once(scene, config, name)
                await idle_memory(scene, config, name)
                await sustained(scene, config, name)


if __name__ == "__main__":
    asyncio.run(main())
