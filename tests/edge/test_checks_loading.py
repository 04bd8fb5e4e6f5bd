"""A plugin that ends, crashes or hangs whoever loads it: it is named, with what happened, and the service ends."""

import asyncio
from pathlib import Path

import pytest
from checks_scenes import build_settings, real_host, until

from retinue.checks import nursery
from retinue.checks.main import BROKEN_EXIT, serve
from retinue.checks.records import WarmConfig
from retinue.serving.doors import Doors
from retinue.terms.record import replace

CHECK = "def check(response, gold, args): return 1.0\n"
DEAF = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\ntime.sleep(600)\n"
STUBBORN = "while True:\n    try:\n        while True: pass\n    except Exception: pass\n"


def build(tmp_path: Path, source: str, limit_s: float = 30.0) -> WarmConfig:
    (tmp_path / "odd.py").write_text(source)
    verifiers = {"fine": "mine:check", "odd": "odd:check"}
    return replace(build_settings(tmp_path, verifiers=verifiers).config, import_limit_s=limit_s)


async def find_cause(config: WarmConfig) -> str:
    settings = replace(build_settings(Path(config.path[0])), config=config)
    async with real_host(settings, waits=False) as host:
        cause = await asyncio.wait_for(asyncio.shield(host.standing.broken), 60)
        assert not host.nursery.is_ready
        return cause


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os\nos._exit(0)\n", "its import ended the process, which exited with 0"),
        ("import os\nos._exit(7)\n", "its import ended the process, which exited with 7"),
        ("import ctypes\nctypes.string_at(0)\n", "its import ended the process, which ended by signal 11"),
        (
            CHECK + "import os\ncheck.warm = lambda: os._exit(0)\n",
            "its `warm` ended the process, which exited with 0",
        ),
    ],
)
async def test_a_plugin_that_ends_who_loads_it_is_named_with_how(tmp_path: Path, source: str, words: str) -> None:
    assert await find_cause(build(tmp_path, source)) == f"verifier 'odd' cannot be used: {words}"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import time\n\ntime.sleep(600)\n", 3),
        ("x = 0\nwhile True:\n    x += 1\n", None),
        (STUBBORN, 3),
        (CHECK + "def warm():\n    import time\n    time.sleep(600)\ncheck.warm = warm\n", 4),
    ],
)
async def test_a_plugin_that_hangs_while_it_is_loaded_is_named_with_its_line(
    tmp_path: Path, source: str, line: int | None
) -> None:
    cause = await find_cause(build(tmp_path, source, limit_s=0.5))
    assert cause.startswith(f"verifier 'odd' cannot be used: {tmp_path}/odd.py:{line or ''}")
    assert cause.endswith(": it was not done after 0.5 s")


async def test_a_plugin_that_hangs_deaf_to_signals_is_ended_from_outside_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "LOAD_GRACE_S", 0.2)
    monkeypatch.setattr(nursery, "LOOK_S", 0.05)
    cause = await find_cause(build(tmp_path, DEAF, limit_s=0.5))
    assert cause == "verifier 'odd' cannot be used: its import was not done after 0.5 s"


async def test_the_weaker_rung_names_it_too(tmp_path: Path) -> None:
    config = replace(build(tmp_path, "import os\nos._exit(0)\n"), rung="fallback")
    assert "verifier 'odd' cannot be used: its import ended the process" in await find_cause(config)


async def test_a_warm_parent_killed_from_outside_while_it_loads_is_nobodys_fault_and_is_started_again(
    tmp_path: Path,
) -> None:
    release = tmp_path / "release"
    source = CHECK + f"import os, time\nwhile not os.path.exists({str(release)!r}): time.sleep(0.01)\n"
    settings = replace(build_settings(tmp_path), config=build(tmp_path, source))
    async with real_host(settings, waits=False) as host:
        await until("the import to begin", lambda: host.nursery._link and host.nursery._link.loading)
        host.nursery._link._process.kill()  # type: ignore[union-attr]
        await until("the next launch", lambda: host.nursery.launches == 2)
        release.touch()
        await until("it to be warm", lambda: host.nursery.is_ready)
        assert not host.standing.broken.done()


async def test_a_service_told_to_exit_when_broken_exits_three_and_does_not_try_for_ever(tmp_path: Path) -> None:
    settings = replace(build_settings(tmp_path), config=build(tmp_path, "import os\nos._exit(0)\n"))
    doors = Doors("127.0.0.1", 0, None)
    assert await asyncio.wait_for(serve(settings, doors, exits_when_broken=True), 60) == BROKEN_EXIT
