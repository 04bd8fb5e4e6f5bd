"""Whoever of ours is killed, nothing of the node is left: in a namespace, and where there is none."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from keeper_rig import Node, Puppet, is_running, running_node, wait_for

from retinue.node.orders import End, Reaped
from retinue.node.scan import read_children

RUNGS = pytest.mark.parametrize("rung", ["namespace", "refused"])


def start_escapees(node: Node, puppet: Puppet) -> list[int]:
    """A service, a child of it, and two escapees, one of which has dropped its environment; returns host pids."""
    script = f"sleep {node.mark} & setsid sleep {node.mark} & setsid env -i sleep {node.mark} & exec sleep {node.mark}"
    puppet.start("judge/0", script)
    return wait_for("four sleepers", lambda: pids if len(pids := list(node._find_mark())) == 4 else None)


def expect_clean(node: Node, rung: str, code: int) -> dict[str, Any]:
    found, report = node.finish()
    assert found == code, report
    assert report["retinue_node"] == "n1"
    assert report["clean"] is True, report
    assert report["left"] == []
    assert report["rung"] == ("namespace" if rung == "namespace" else "subreaper")
    node.wait_gone()
    return report


@RUNGS
def test_end_of_file_on_the_stop_descriptor_ends_the_node(rung: str) -> None:
    with running_node(rung) as node:
        start_escapees(node, node.first_agent())
        node.stop()
        report = expect_clean(node, rung, 0)
        assert "stub" in report["note"]
        assert "killed" not in report["note"]


@RUNGS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_outer_process_ends_the_node(rung: str, number: signal.Signals) -> None:
    with running_node(rung) as node:
        start_escapees(node, node.first_agent())
        node.outer.send_signal(number)
        report = expect_clean(node, rung, 0)
        assert number.name in report["note"]
        assert "had to be killed" not in report["note"]


@RUNGS
def test_the_agents_order_to_end_is_an_end_as_asked(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        start_escapees(node, puppet)
        puppet.send(End("told so"))
        report = expect_clean(node, rung, 0)
        assert "told so" in report["note"]


@RUNGS
def test_a_killed_keeper_takes_everything_with_it_and_is_named(rung: str) -> None:
    with running_node(rung) as node:
        start_escapees(node, node.first_agent())
        os.kill(node.keeper_pid, signal.SIGKILL)
        report = expect_clean(node, rung, 9)
        assert "SIGKILL" in report["note"]


@RUNGS
def test_a_killed_outer_process_leaves_its_janitor_to_clean_up(rung: str) -> None:
    with running_node(rung) as node:
        start_escapees(node, node.first_agent())
        node.outer.kill()
        node.wait_gone()


def make_controller_part(node_dir: Path) -> None:
    (node_dir / "controller").mkdir(mode=0o700, parents=True)
    node_dir.chmod(0o700)
    (node_dir / "controller" / "run.json").write_text("{}")


@RUNGS
def test_a_janitor_removes_the_controllers_part_too_when_all_was_killed_at_once(rung: str) -> None:
    with running_node(rung, make_controller_part) as node:
        start_escapees(node, node.first_agent())
        node.outer.kill()
        node.wait_gone()


def test_a_janitor_leaves_the_controllers_part_to_a_stub_that_lives() -> None:
    with running_node("namespace", make_controller_part) as node:
        node.first_agent()
        record = node.node_dir / "controller" / "run.json"
        with subprocess.Popen(["sh", "-c", "sleep 600; true", str(record)]) as stub:
            janitor = wait_for("a janitor", node.janitor_pid)
            node.outer.kill()
            wait_for("the janitor to end", lambda: not is_running(janitor))
            assert os.listdir(node.node_dir) == ["controller"]
            for pid in (*read_children(stub.pid), stub.pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(node.node_dir)


@RUNGS
def test_an_outer_process_killed_over_a_hung_keeper_leaves_nothing(rung: str) -> None:
    with running_node(rung, keeper_limit_s=0.5) as node:
        puppet = node.first_agent()
        puppet.start("judge/0", f"setsid sleep {node.mark} & exec sleep {node.mark}")
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.outer.kill()
        node.wait_gone()


@RUNGS
def test_a_killed_janitor_is_replaced_and_the_new_one_works(rung: str) -> None:
    with running_node(rung) as node:
        start_escapees(node, node.first_agent())
        first = wait_for("a janitor", node.janitor_pid)
        os.kill(first, signal.SIGKILL)
        wait_for("another janitor", lambda: node.janitor_pid() not in (0, first))
        node.outer.kill()
        node.wait_gone()


@RUNGS
def test_an_end_right_after_the_janitor_died_is_clean(rung: str) -> None:
    with running_node(rung) as node:
        start_escapees(node, node.first_agent())
        os.kill(wait_for("a janitor", node.janitor_pid), signal.SIGKILL)
        node.stop()
        expect_clean(node, rung, 0)


@RUNGS
def test_a_keeper_that_does_not_answer_is_killed_at_its_deadline(rung: str) -> None:
    with running_node(rung, keeper_limit_s=0.5) as node:
        start_escapees(node, node.first_agent())
        os.kill(node.keeper_pid, signal.SIGSTOP)
        node.stop()
        report = expect_clean(node, rung, 0)
        assert "had to be killed" in report["note"]


def test_outer_and_keeper_killed_at_once_leave_only_what_dropped_its_environment() -> None:
    """The one hole of the weaker rung: tags are all the janitor has then."""
    with running_node("refused") as node:
        pids = start_escapees(node, node.first_agent())
        os.kill(node.outer.pid, signal.SIGSTOP)
        os.kill(node.keeper_pid, signal.SIGKILL)
        node.outer.kill()
        wait_for("the node directory to be gone", lambda: not node.node_dir.exists())
        assert len([pid for pid in pids if is_running(pid)]) == 1


@pytest.mark.parametrize("rung", ["namespace", "refused", "off"])
def test_the_weaker_rung_says_why(rung: str) -> None:
    with running_node(rung) as node:
        node.first_agent()
        wanted = {"namespace": "", "refused": "no user namespace", "off": "off by manifest"}[rung]
        assert node.inventory.has_namespace is (rung == "namespace")
        assert wanted in node.inventory.weaker
        assert bool(node.inventory.weaker) is bool(wanted)
        node.stop()
        assert wanted in expect_clean(node, rung, 0)["note"]


BOMB = """
import os, sys
while True:
    if os.fork() == 0:
        os.setsid()
    elif not os.fork():
        os.setsid()
    else:
        os._exit(0)
    if int(open('/proc/loadavg').read().split()[3].split('/')[1]) > 600:
        os._exit(0)
"""
CHAIN = "import os\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n"


@RUNGS
@pytest.mark.parametrize("script", [CHAIN, BOMB], ids=["chain", "bomb"])
def test_a_fork_bomb_of_escapees_dies_with_the_node(rung: str, script: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        for index in range(3):
            puppet.order(f"bomb/{index}", ["python3", "-c", script, node.mark])
        for index in range(3):
            puppet.hear(Reaped, f"bomb/{index}")  # From here on only escapees are left of it.
        node.stop()
        expect_clean(node, rung, 0)
