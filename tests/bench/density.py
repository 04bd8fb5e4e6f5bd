"""How many sandboxes live at once on this machine: makes COUNT, uses some, ends all, looks what is left.

Run: `PYTHONPATH=controller python tests/bench/density.py COUNT [--user NAME]`.
As root it raises the kernel's settings that are too small, says which, runs the measurement as NAME and puts them back;
the sandboxes themselves never need root. Asks the doctor first. Stops by itself when the machine is short of memory,
and names the limit that stopped it. Exit code 1 when fewer than COUNT lived or something is left.

Refuses more than FILTERS_MAX: each sandbox installs a filter of system calls of its own, and Linux (seen on 6.18)
can lock up for good when more than 1,024 of them are freed at once. bpf_jit_free runs on the system work queue, which
runs 1,024 works per CPU; all wait for a mutex whose holder waits for vmap_purge_lock, whose holder waits for a work
behind them on the same queue. From then on no program of the machine can install a filter, until it is booted again.
"""

import argparse
import asyncio
import os
import pwd
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from density_limits import ask_doctor, find_short, raise_sysctls, read_limits, write_sysctl
from sandbox_calls import Caller, Refusal, read_meminfo_kib, read_pss_kib, running_service, wait_ready
from sandbox_scenes import get_program, make_image

FILTERS_MAX = 900
"""Until the sandboxes of an image share one filter."""
IN_FLIGHT = 16
STEP = 1000
MEMORY_MIN_KIB = 2 * 2**20
USED = 1000
"""Sandboxes, evenly chosen, that run a command while all are there."""
SETTLE_S = 20.0
LIMITS = {"disk": "64MiB", "memory": "128MiB", "pids": 64}


class Crowd:
    """The sandboxes of one measurement."""

    def __init__(self, sock: Path, image: Path, pid: int) -> None:
        self.callers = [Caller(sock) for _ in range(IN_FLIGHT)]
        self._image = str(image)
        self.pid = pid
        self.names: list[str] = []
        self.stopped_by = ""
        self._took: list[float] = []
        self._began = self._lap = time.perf_counter()

    async def fill(self, count: int) -> None:
        """Make so many, or as many as the machine lets us."""
        left = iter(range(count))

        async def make(caller: Caller) -> None:
            for _ in left:
                if self.stopped_by:
                    return
                began = time.perf_counter()
                try:
                    body = {"image": self._image, "limits": LIMITS, "lease_s": "24h", "queue_s": 0}
                    self.names.append((await caller.ask("POST", "/v1/sandboxes", body))["id"])
                except (Refusal, OSError, asyncio.IncompleteReadError) as error:
                    self.stopped_by = self.stopped_by or f"a create was refused: {error}"
                    return
                self._took.append(time.perf_counter() - began)
                if len(self.names) % STEP == 0:
                    self._note_step()

        await asyncio.gather(*(make(caller) for caller in self.callers))

    def _note_step(self) -> None:
        now = time.perf_counter()
        free = read_meminfo_kib("MemAvailable")
        print(
            f"{len(self.names):6} live   {STEP / (now - self._lap):5.0f}/s   create p50 "
            f"{statistics.median(self._took) * 1e3:6.2f} ms   available {free / 2**20:5.1f} GiB   "
            f"slab {read_meminfo_kib('Slab') / 2**20:4.1f} GiB",
            flush=True,
        )
        self._took.clear()
        self._lap = now
        if free < MEMORY_MIN_KIB:
            self.stopped_by = f"memory: {free} KiB available, {MEMORY_MIN_KIB} stay free"

    async def for_each(self, names: list[str], act: Callable[[Caller, str], Awaitable[Any]]) -> float:
        """Do something to each, one at a time on each connection; gives how long it took."""
        left, began = iter(names), time.perf_counter()

        async def go(caller: Caller) -> None:
            for name in left:
                await act(caller, name)

        await asyncio.gather(*(go(caller) for caller in self.callers))
        return time.perf_counter() - began


async def run_true(caller: Caller, name: str) -> None:
    ended = await caller.ask("POST", f"/v1/sandboxes/{name}/exec", {"argv": ["/bin/true"]})
    if ended["outcome"] != "exited" or ended["code"] != 0:
        raise Refusal(f"/bin/true in {name}: {ended}")


async def destroy(caller: Caller, name: str) -> None:
    await caller.ask("DELETE", f"/v1/sandboxes/{name}")


def count_inits() -> int:
    """First processes of sandboxes on this machine, of anybody."""
    found = 0
    for entry in os.scandir("/proc"):
        try:
            found += entry.name.isdigit() and Path(entry.path, "comm").read_text() == "sandbox-init\n"
        except OSError:
            continue
    return found


async def measure_crowd(crowd: Crowd, count: int) -> bool:
    """Fill, use, empty; False when it was not as it should be."""
    free, own, others = read_meminfo_kib("MemFree"), read_pss_kib(crowd.pid), count_inits()
    began = time.perf_counter()
    await crowd.fill(count)
    took, live = time.perf_counter() - began, len(crowd.names)
    there = count_inits() - others
    if crowd.stopped_by:
        print(f"STOPPED at {live}: {crowd.stopped_by}")
        for limit in sorted(read_limits(live, crowd.pid), key=lambda one: one.left / max(one.most, 1))[:5]:
            print(f"   nearest limits: {limit}")
    each = (free - read_meminfo_kib("MemFree")) / max(live, 1)
    held = (read_pss_kib(crowd.pid) - own) / max(live, 1)
    print(f"{live} live at once after {took:.0f} s ({live / took:.0f}/s); first processes seen: {there}")
    print(f"{each:.0f} KiB of the machine's MemFree each, of which the service's processes hold {held:.1f}", flush=True)
    some = crowd.names[:: max(1, live // USED)]
    spent = await crowd.for_each(some, run_true)
    print(f"/bin/true in {len(some)} of them: {len(some) / spent:.0f}/s", flush=True)
    emptied = await crowd.for_each(crowd.names, destroy)
    left = (await crowd.callers[0].ask("GET", "/v1/capacity"))["live"]
    print(f"destroyed {live} one by one in {emptied:.1f} s ({live / max(emptied, 1e-9):.0f}/s); live now: {left}")
    await wait_until(lambda: count_inits() <= others)
    residue = (free - read_meminfo_kib("MemFree")) / max(live, 1)
    print(f"first processes left: {count_inits() - others}; MemFree not back: {residue:.0f} KiB each (caches included)")
    return live == count and there >= count and left == 0 and count_inits() <= others


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the kernel, for a while."""
    ends = time.perf_counter() + SETTLE_S
    while not condition() and time.perf_counter() < ends:  # noqa: ASYNC110  the kernel sets no Event
        await asyncio.sleep(0.2)


def list_mounts(place: Path) -> list[str]:
    """What is mounted below a directory, as this process sees it."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {place}" in line]


async def run_measurement(count: int) -> bool:
    """As an ordinary user."""
    with tempfile.TemporaryDirectory(prefix="retinue-density-") as folder:
        place = Path(folder)
        (place / "store").mkdir()
        (place / "node").mkdir()
        words = ["--unix", str(place / "sandbox.sock"), "--store", str(place / "store")]
        words += ["--program", str(get_program(place)), "--budget-count", str(count)]
        words += ["--budget-memory", "1024TiB", "--budget-processes", "1000000000"]
        image = make_image(place / "image")
        with running_service(words, env=os.environ | {"RETINUE_NODE_DIR": str(place / "node")}) as service:
            caller = Caller(place / "sandbox.sock")
            await wait_ready(caller, service)
            for short in find_short(read_limits(0, service.pid), count):
                print(f"this limit is short of {count}: {short}")
            is_good = await measure_crowd(Crowd(place / "sandbox.sock", image, service.pid), count)
            caller.close()
        left = list_mounts(place)
        left += [str(path) for path in (place / "node").iterdir()]
        print(f"after the service has ended: exit {service.returncode}, mounts and files left: {left or 'none'}")
        return is_good and service.returncode == 0 and not left


def run_as(user: str, count: int) -> int:
    """As root: raise what is short, measure as that user, put it back."""
    before = raise_sysctls(count)
    try:
        found = pwd.getpwnam(user)
        env = {"PATH": os.environ["PATH"], "HOME": found.pw_dir, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        words = [sys.executable, str(Path(__file__).resolve()), str(count)]
        groups = os.getgrouplist(user, found.pw_gid)
        return subprocess.run(words, user=found.pw_uid, group=found.pw_gid, extra_groups=groups, env=env).returncode
    except (KeyError, PermissionError) as error:
        print(f"cannot measure as {user!r}: {error}; make the user, and let it read this tree", file=sys.stderr)
        return 2
    finally:
        for name, value in before.items():
            write_sysctl(name, value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--user", default="retinue-test", help="as root: whom to measure as")
    words = parser.parse_args()
    if words.count > FILTERS_MAX:
        print(f"not more than {FILTERS_MAX}: freeing so many filters at once can lock up the kernel", file=sys.stderr)
        return 2
    if os.geteuid() == 0:
        return run_as(words.user, words.count)
    for refusal in ask_doctor():
        print(f"the doctor says no: {refusal}")
        return 1
    print(f"{os.cpu_count()} CPUs, {read_meminfo_kib('MemTotal') / 2**20:.0f} GiB, load {os.getloadavg()[0]:.1f},"
          f" Linux {os.uname().release}; {words.count} sandboxes wanted", flush=True)  # fmt: skip
    return 0 if asyncio.run(run_measurement(words.count)) else 1


if __name__ == "__main__":
    sys.exit(main())
