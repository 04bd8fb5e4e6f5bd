"""An agent without a controller asks Slurm by command, once and for a bounded time, and acts on nothing less."""

import os
import time
from pathlib import Path

import pytest
from channel_scenes import bind_listener, build_join

from retinue.channel.join import BatchHost, Join
from retinue.node.orphan import judge_orphan, run_command
from retinue.node.threads import Threads
from retinue.terms.record import replace


def build(tmp_path: Path, answer: str, node: str = "n2") -> Join:
    """A join whose Slurm is two scripts: one prints the answer, one notes that it was run."""
    ask = ("sh", "-c", answer)
    cancel = ("sh", "-c", f"echo cancelled >>{tmp_path}/done; env >{tmp_path}/env")
    with bind_listener() as listener:
        return replace(build_join(listener, node), batch_host=BatchHost("n1", ask, cancel))


async def judge(join: Join, is_lost: bool = True) -> str | None:
    return await judge_orphan(join, {}, Threads(), dict(os.environ), lambda: is_lost)


async def test_a_batch_host_that_slurm_calls_down_is_the_end_of_the_job(tmp_path: Path) -> None:
    reason = await judge(build(tmp_path, "echo NodeName=n1 State=DOWN*"))
    assert reason is not None
    assert "n1 is gone" in reason
    assert (tmp_path / "done").read_text() == "cancelled\n"


@pytest.mark.parametrize(
    "answer", ["echo NodeName=n1 State=MIXED", "exit 1", "echo State=DOWN; exit 1", "exec no-such"]
)
async def test_the_job_is_left_alone_when_nobody_says_that_the_batch_host_is_gone(tmp_path: Path, answer: str) -> None:
    reason = await judge(build(tmp_path, answer))
    assert reason is not None
    assert "left alone" in reason
    assert not (tmp_path / "done").exists()


async def test_a_controller_that_came_back_meanwhile_has_its_node_and_its_job(tmp_path: Path) -> None:
    assert await judge(build(tmp_path, "echo State=DOWN"), is_lost=False) is None
    assert not (tmp_path / "done").exists()


async def test_the_batch_host_itself_asks_nobody(tmp_path: Path) -> None:
    assert await judge(build(tmp_path, f"touch {tmp_path}/asked; echo State=DOWN", node="n1")) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_says_nothing_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    began_s = time.monotonic()
    assert run_command(["sh", "-c", f"sleep 600 & echo $! >{tmp_path}/pid; wait"], dict(os.environ), limit_s=0.3) == ""
    assert time.monotonic() - began_s < 60
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]


def test_settings_of_the_users_commands_do_not_bend_ours() -> None:
    env = {**os.environ, "SCANCEL_INTERACTIVE": "1", "SCONTROL_ALL": "1", "SLURM_CLUSTERS": "other", "SLURM_CONF": "/x"}
    said = run_command(["env"], env)
    assert "SLURM_CONF=/x" in said
    assert not any(name in said for name in ("SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS"))
