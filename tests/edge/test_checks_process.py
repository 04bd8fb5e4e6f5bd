"""`python -m retinue.checks` as a process: where it listens, how it ends, and what it leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from checks_scenes import PLUGIN

from retinue.checks.main import main
from retinue.serving.doors import Doors
from support.real_run import is_running, wait_for


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self.path))


class Process:
    """A running service."""

    def __init__(self, tmp_path: Path, *words: str) -> None:
        (tmp_path / "mine.py").write_text(PLUGIN)
        self.path = tmp_path / "deep" / "checks.sock"
        self.port_file = tmp_path / "port"
        argv = [
            "--port",
            "0",
            "--unix",
            str(self.path),
            "--verifier",
            "mine=mine:check",
            "--plugin-path",
            str(tmp_path),
        ]
        env = os.environ | {
            "RETINUE_PORT_FILE": str(self.port_file),
            "RETINUE_REPLICA": "scoring/0",
            "RETINUE_INCARNATION": "3",
            "RETINUE_NODE": "n7",
        }
        # The verifiers that come along import sympy: 2 s of CPU that only one test here needs.
        starter = "import retinue.checks.main as m, sys; m.BUILTIN = {}; sys.exit(m.main(sys.argv[1:]))"
        start = ["-m", "retinue.checks"] if "--real" in words else ["-c", starter]
        more = [word for word in words if word != "--real"]
        self.popen = subprocess.Popen(
            [sys.executable, "-P", *start, *argv, *more], env=env, stderr=subprocess.PIPE, text=True
        )

    def call(self, method: str, page: str, body: Any = None) -> tuple[int, Any]:
        connection = UnixConnection(self.path)
        try:
            connection.request(method, page, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate(timeout=60)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    running: list[Process] = []

    def start(*words: str) -> Process:
        running.append(Process(tmp_path, *words))
        wait_for("the service to be ready", running[-1].is_ready)
        return running[-1]

    yield start
    for process in running:
        process.end()


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        try:
            words = Path(f"/proc/{(parent := waiting.pop())}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        found |= {int(word) for word in words}
        waiting += map(int, words)
    return found


def test_it_serves_a_port_and_a_socket_that_only_its_user_can_open_and_says_who_it_is(started: Any) -> None:
    service = started()
    assert service.path.stat().st_mode & 0o777 == 0o600
    assert service.path.parent.stat().st_mode & 0o777 == 0o700
    connection = HTTPConnection("127.0.0.1", int(service.port_file.read_text()), timeout=60)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    status, outcome = service.call("POST", "/v1/check", {"verifier": "mine", "response": "a", "gold": "a"})
    assert (status, outcome["outcome"], outcome["score"]) == (200, "scored", 1.0)
    assert (outcome["incarnation"], outcome["node"], outcome["service"]) == ("scoring/0#3", "n7", "scoring")


def test_sigterm_answers_what_runs_and_what_waits_and_exits_0_and_leaves_nothing(started: Any) -> None:
    service = started("--workers", "1", "--timeout", "60s")
    children = descendants(service.popen.pid)
    assert children
    connection = UnixConnection(service.path)
    checks = [{"verifier": "mine", "response": word, "gold": "x"} for word in ("wait 0.5", "hang", "x")]
    connection.request("POST", "/v1/checks", json.dumps({"checks": checks}))
    answer = connection.getresponse()
    service.popen.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in answer.read().splitlines()]
    connection.close()
    kinds = {line["index"]: line["outcome"] for line in lines}
    assert kinds == {0: "scored", 1: "infra_failed", 2: "infra_failed"}
    assert {line["event"] for line in lines if line["index"]} == {"service stopping"}
    assert service.popen.wait(60) == 0
    assert not service.path.exists()
    wait_for("its children to be gone", lambda: not any(map(is_running, children)))


def test_a_host_that_is_killed_leaves_no_child_and_its_successor_takes_the_socket_over(started: Any) -> None:
    service = started("--timeout", "60s")
    connection = UnixConnection(service.path)
    connection.request("POST", "/v1/check", json.dumps({"verifier": "mine", "response": "spin", "gold": "x"}))
    children = wait_for("children", lambda: descendants(service.popen.pid))
    service.popen.kill()
    service.popen.wait(60)
    connection.close()
    wait_for("its children to be gone", lambda: not any(map(is_running, children)))
    successor = started()
    assert successor.call("GET", "/health")[0] == 200


def test_a_socket_that_is_served_is_not_taken_and_one_that_has_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = Doors("127.0.0.1", None, str(path))
    first.sockets[0].listen()
    with pytest.raises(FileExistsError, match="another process serves it"):
        Doors("127.0.0.1", None, str(path))
    first.sockets[0].close()
    second = Doors("127.0.0.1", None, str(path))
    first.close()
    assert path.is_socket()
    second.close()
    assert not path.exists()


def test_a_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="is no socket"):
        Doors("127.0.0.1", 0, str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nowhere to listen"),
        (["--port", "0", "--workers", "0"], "--workers is 0"),
        (["--port", "0", "--queue", "-1"], "--queue is -1"),
        (["--port", "0", "--timeout", "10"], "write it like '10s'"),
        (["--port", "0", "--timeout", "0s"], "write it like '10s'"),
        (["--port", "0", "--memory", "2GB"], "write it like '2GiB'"),
        (["--port", "0", "--verifier", "mine"], "mine=my_module:check"),
    ],
)
def test_a_word_that_has_no_meaning_is_named_and_nothing_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_verifier_that_cannot_be_imported_ends_it_with_3_where_that_is_asked_for(tmp_path: Path) -> None:
    process = Process(tmp_path, "--verifier", "gone=no_such_module:check", "--exit-when-broken")
    try:
        assert process.popen.wait(60) == 3
    finally:
        process.end()


def test_the_verifiers_that_come_along_judge_and_a_hanging_answer_costs_only_itself(started: Any) -> None:
    service = started("--real", "--timeout", "2s")
    rows = [
        ("math", r"\boxed{2^{4^{8^{16}}}}", "7", ("timed_out", 0.0)),
        ("math", r"so \boxed{\frac{1}{2}}", "0.5", ("scored", 1.0)),
        ("math", "(" * 400 + "7" + ")" * 400, "7", ("scored", 0.0)),
        ("regex", "a" * 40 + "!", "^(a+)+$", ("timed_out", 0.0)),
        ("exact", " Yes", "yes", ("scored", 1.0)),
        ("json_schema", '{"a": 1}', {"required": ["a"]}, ("scored", 1.0)),
        ("numeric", "about 1,000", "1000", ("scored", 1.0)),
        ("instruction", "one two", [], ("rejected", None)),
    ]
    checks = [{"verifier": verifier, "response": response, "gold": gold} for verifier, response, gold, _ in rows]
    connection = UnixConnection(service.path)
    connection.request("POST", "/v1/checks", json.dumps({"checks": checks}))
    lines = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    connection.close()
    found = {line["index"]: (line["outcome"], line["score"]) for line in lines}
    assert found == {index: want for index, (*_, want) in enumerate(rows)}
