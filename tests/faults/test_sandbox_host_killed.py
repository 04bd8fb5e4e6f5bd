"""The sandbox service as a process of its own: killed, told to stop, refused; nothing of it is ever left."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from sandbox_scenes import is_alive, list_descendants, until
from sandbox_service import prepare_service


class Running:
    """A service process and a caller of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", session: aiohttp.ClientSession, image: Path) -> None:
        self.process = process
        self.session = session
        self.image = image

    async def create(self) -> str:
        async with self.session.post("http://x/v1/sandboxes", json={"image": str(self.image)}) as response:
            assert response.status == 201, await response.text()
            return str((await response.json())["id"])

    async def is_ready(self) -> bool:
        try:
            async with self.session.get("http://x/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


def launch(argv: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(argv, env=env)


@asynccontextmanager
async def real_process(base: Path, place: Path, *words: str) -> AsyncGenerator[Running, None]:
    """`python -m retinue.sandbox`, ready; ended by pid whatever the test did."""
    program, image, store = prepare_service(base)
    argv = [sys.executable, "-P", "-m", "retinue.sandbox", "--unix", str(place / "s"), "--store", str(store)]
    env = os.environ | {"RETINUE_NODE_DIR": str(place)}
    process = launch([*argv, "--program", str(program), "--shards", "2", *words], env)
    connector = aiohttp.UnixConnector(str(place / "s"))
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            running = Running(process, session, image)
            async with asyncio.timeout(60):
                while not await running.is_ready():
                    assert process.poll() is None, "the service has ended"
                    await asyncio.sleep(0.05)
            yield running
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="retinue-sbx-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_no_process_no_mount_and_no_directory_is_left_of_a_service_however_it_ends(
    tmp_path_factory: pytest.TempPathFactory, place: Path, number: int
) -> None:
    async with real_process(tmp_path_factory.getbasetemp(), place) as running:
        names = [await running.create() for _ in range(4)]
        script = {"script": "sleep 1000 & setsid sleep 1000 & sleep 1000", "background": True}
        for name in names:
            async with running.session.post(f"http://x/v1/sandboxes/{name}/exec", json=script) as response:
                assert response.status == 202
        # Space, holder, squashfuse, two shards and zygotes; in each sandbox a first process and three sleepers.
        await until(lambda: len(list_descendants(running.process.pid)) >= 7 + 4 * 4)
        pids = list_descendants(running.process.pid)
        os.kill(running.process.pid, number)
        await until(lambda: running.process.poll() is not None)
        await until(lambda: not any(is_alive(pid) for pid in pids))
        if number != signal.SIGKILL:
            assert running.process.returncode == 0
            assert [path.name for path in place.iterdir()] == []
        else:
            (left,) = [path for path in place.iterdir() if path.name != "s"]
            assert list((left / "space").iterdir()) == []
    assert "retinue-sbx" not in Path("/proc/self/mountinfo").read_text()


def test_a_node_without_squashfuse_is_refused_with_what_to_do_and_nothing_is_started(
    tmp_path_factory: pytest.TempPathFactory, place: Path
) -> None:
    program, _, store = prepare_service(tmp_path_factory.getbasetemp())
    (place / "bin").mkdir()
    words = ["--unix", str(place / "s"), "--store", str(store), "--program", str(program)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "retinue.sandbox", *words],
        env=os.environ | {"PATH": str(place / "bin")}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "squashfuse" in done.stderr
    assert not (place / "s").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "nowhere to listen"),
        (["--port", "0", "--limit-disk", "12"], "limits.disk"),
        (["--port", "0", "--limit-disk", "1GB"], "limits.disk"),
        (["--port", "0", "--queue", "0"], "--queue"),
        (["--port", "0", "--budget-count", "0"], "--budget-count"),
    ],
)
def test_a_command_line_that_has_no_meaning_is_refused(words: list[str], complaint: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "retinue.sandbox", "--store", str(place), *words],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert complaint in done.stderr
