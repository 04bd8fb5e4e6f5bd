"""The step that asks silent nodes at the end: bounded, and believed only for what it says."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue.supervise import stub_proof
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_proof import Proof

NODES = ("n1", "n2", "n3")
ALL_ANSWER = 'for n in $(echo "$0" | tr , " "); do echo "{\\"retinue_node\\": \\"$n\\", \\"clean\\": true}"; done'


class Asker:
    """What the stub does for a proof: it waits, and reaps."""

    def __init__(self, script: str) -> None:
        self.proof = Proof()
        self.proof.take_order({"proof_argv": ["sh", "-c", script, "{nodes}", "{count}"], "env": dict(os.environ)})
        self.killed: list[int] = []

    def ask(self, nodes: tuple[str, ...] = NODES) -> dict[str, dict[str, Any]]:
        return self.proof.ask(nodes, self.look, self.kill)

    def look(self, condition: Callable[[], bool], limit_s: float) -> bool:
        until_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > until_s:
                return False
            for asked in self.proof._asked:
                if asked.child.is_alive:
                    pid, status = os.waitpid(asked.child.pid, os.WNOHANG)
                    if pid:
                        self.proof.take_exit(pid, status)
            time.sleep(0.005)
        return True

    def kill(self, child: Child) -> None:
        if child.is_alive:
            self.killed.append(child.pid)
            child.send_signal(signal.SIGKILL)
            child.note_status(os.waitpid(child.pid, 0)[1])


def test_all_silent_nodes_are_asked_by_one_step(tmp_path: Path) -> None:
    asker = Asker(f'echo "$0 $1" >>{tmp_path}/asked; {ALL_ANSWER}')
    assert set(asker.ask()) == set(NODES)
    assert (tmp_path / "asked").read_text() == "n1,n2,n3 3\n"
    assert asker.killed == []


def test_a_node_that_slurm_does_not_have_any_more_does_not_keep_the_others_from_being_asked(tmp_path: Path) -> None:
    refuse = 'case $0 in *n2*) echo "not available" >&2; exit 1;; esac; '
    assert set(Asker(refuse + ALL_ANSWER).ask()) == {"n1", "n3"}


def test_a_step_that_hangs_is_ended_and_what_it_said_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_proof, "LIMIT_S", 0.5)
    asker = Asker("""echo '{"retinue_node": "n1", "clean": false}'; exec sleep 600""")
    assert asker.ask() == {"n1": {"retinue_node": "n1", "clean": False}}
    assert len(asker.killed) == 1


def test_where_slurm_itself_is_silent_nobody_is_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_proof, "LIMIT_S", 0.5)
    asker = Asker(f"echo asked >>{tmp_path}/asked; exec sleep 600")
    assert asker.ask() == {}
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.mark.parametrize("said", ["", "no json", "[1]", '{"clean": true}', '{"retinue_node": 3}', "{"])
def test_what_is_no_report_is_no_proof(said: str) -> None:
    assert Asker(f"cat <<'E'\n{said}\nE").ask(("n1",)) == {}


def test_a_long_answer_is_read_while_the_step_runs() -> None:
    report = {"retinue_node": "n1", "clean": True, "note": "x" * 300_000}
    asker = Asker(f"""head -c 300000 /dev/zero | tr '\\0' x | sed 's/^/{json.dumps(report)[:-300_002]}/; s/$/"}}/'""")
    assert len(asker.ask(("n1",))["n1"]["note"]) == 300_000


def test_without_an_order_nobody_is_asked() -> None:
    proof = Proof()
    proof.take_order({"op": "launch", "argv": ["x"]})
    assert proof.ask(NODES, lambda *_: pytest.fail("waited"), lambda _: pytest.fail("killed")) == {}
