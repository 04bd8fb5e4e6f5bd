"""The same attacks against a plugin that runs in a plain process: they work. So the jail is what stops them.

Only those whose reach is exactly what this test gives them; the sweeping ones must refuse to fire.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checks_forging as forging
import checks_reaching as reaching
import checks_wrecking as wrecking
import pytest
from checks_stage import SECRET, Attack, build_response

PLAIN = """
import json, os, sys
gold = json.loads(sys.argv[2])
pid = os.fork()
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
scope = {"gold": gold, "__name__": "policy"}
exec(sys.argv[1], scope)
print(scope["answer"][1])
"""


def run_plain(function: Any, **gold: Any) -> subprocess.CompletedProcess[str]:
    """A parent, and a child of it that runs the policy's text with the rights that it has."""
    argv = [sys.executable, "-c", PLAIN, build_response(function), json.dumps(gold)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, start_new_session=True)


def read_loot(function: Any, **gold: Any) -> list[Any]:
    done = run_plain(function, **gold)
    assert done.returncode == 0, done.stderr
    loot: list[Any] = json.loads(done.stdout)
    return loot


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    env = {"RETINUE_TOKEN": SECRET}
    with subprocess.Popen(["/bin/sleep", "600"], env=env, start_new_session=True) as process:
        yield process
        process.kill()


def test_it_kills_its_parent() -> None:
    assert run_plain(reaching.kill_parent).returncode == -signal.SIGKILL


@pytest.mark.parametrize("attack", [reaching.kill_the_run, reaching.kill_by_descriptor])
def test_it_kills_whom_it_knows(victim: subprocess.Popen[bytes], attack: Any) -> None:
    assert read_loot(attack, pids={"victim": victim.pid}) != []
    assert victim.wait(30) == -signal.SIGKILL


@pytest.mark.skipif(
    Path("/proc/sys/kernel/yama/ptrace_scope").exists(), reason="cannot here: Yama forbids tracing siblings"
)
def test_it_traces_whom_it_knows(victim: subprocess.Popen[bytes]) -> None:
    assert any("ptrace" in word for word in read_loot(reaching.trace_anyone, pids={"victim": victim.pid}))


def test_it_reads_the_environment_of_whom_it_knows(victim: subprocess.Popen[bytes]) -> None:
    assert any(SECRET in word for word in read_loot(reaching.read_environments, pids={"victim": victim.pid}))


def test_it_reads_secrets_and_writes_beside_them(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text(SECRET)
    (tmp_path / "evil.py").write_text("")
    secrets = [str(tmp_path / "id_rsa")] * 3
    assert any(SECRET in word for word in read_loot(reaching.read_secrets, secrets=secrets))
    place = tmp_path / "evil.py"
    loot = read_loot(reaching.write_elsewhere, places=[str(tmp_path)], system=[], secrets=secrets)
    assert [str(place)] in loot


def test_it_connects_to_whoever_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        loot = read_loot(reaching.connect_anywhere, ports=[server.getsockname()[1]], sockets=[path])
        server.settimeout(30)
        other.settimeout(30)
        server.accept()[0].close()
        assert other.recv(1) == b"x"
    assert any(path in word for word in loot)


def test_it_leaves_traces_for_the_next(tmp_path: Path) -> None:
    assert read_loot(reaching.leave_traces, tmp=str(tmp_path)) == []
    assert "planted" in read_loot(reaching.find_traces, tmp=str(tmp_path))


def test_it_patches_the_verifier_of_a_process_that_is_used_again() -> None:
    code = (
        "from retinue.checks.verifiers import exact\n"
        "import os, sys, checks_reaching\n"
        "lie = lambda: exact.check('A wave.', 'the tide.', {})\n"
        "before = lie()\n"
        "checks_reaching.patch_the_checker({'exits': False})\n"
        "print(before[0], lie())\n"
    )
    here = [os.environ.get("PYTHONPATH", ""), *sys.path]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, here))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout.split() == ["0.0", "1.0"], done.stderr


def test_it_forges_what_is_read_from_its_output() -> None:
    assert '"reason": "forged"' in run_plain(forging.print_a_result).stdout


def test_it_searches_its_own_memory_and_finds_what_is_there() -> None:
    found = {"shifted": ["".join(chr(ord(letter) + 1) for letter in "Its source goes in front of each")]}
    assert read_loot(reaching.search_memory, **found) != []


@pytest.mark.parametrize(
    "attack",
    [
        reaching.kill_everyone,
        *(
            attack.function
            for attack in wrecking.ATTACKS
            if "need_" in build_response(attack.function).split("def ")[-1]
        ),
        wrecking.fill_tmp,
    ],
    ids=lambda attack: attack.__name__,
)
def test_what_would_harm_this_machine_refuses_to_fire_outside_the_jail(attack: Any) -> None:
    done = run_plain(attack)
    assert done.returncode == 1
    assert "RuntimeError: NOT L" in done.stderr


def test_every_attack_that_sweeps_or_exhausts_is_guarded() -> None:
    dangerous = ("os.kill(-1", "os.kill(0,", "os.fork()", "start_new_thread", "bytearray(", "mmap.mmap")
    for attack in (*reaching.ATTACKS, *wrecking.ATTACKS, Attack(reaching.leave_traces)):
        text = build_response(attack.function).rpartition(f"def {attack.name}(")[2]
        if any(word in text for word in dangerous):
            assert "need_walls()" in text or "need_limit(" in text, attack.name
