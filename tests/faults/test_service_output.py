"""A service that floods its log, writes no text, or never reads what it is sent: only its own affair."""

import os
import threading
import time
import urllib.request
from pathlib import Path

from service_scenes import build_program, build_server, end_cleanly, find_events, get, running, wait_event

from support.real_run import RealRun

MIB = 1024 * 1024
FLOODS = """
import os
print("first words", flush=True)
block = b"x" * 99 + b"\\n"
block *= 600
while True:
    os.write(1, block)
"""
WRITES_NO_TEXT = """
import os, time
assert os.readlink("/proc/self/fd/0") == "/dev/null"
assert os.read(0, 1) == b""
every = bytes(range(256)) * 16
os.write(1, every)
long = b"y" * 3_000_000
while long:
    long = long[os.write(1, long):]
os._exit(5)
"""
NEVER_READS = """
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def hold():
    held = []
    while True:
        held.append(listener.accept())
threading.Thread(target=hold).start()
0 and serve(0)
"""
LOG_BOUND_BYTES = (16 + 2 * 24 + 1) * MIB
"""Head and the two newest halves, and notes: see node/capture.py."""


def count_log_bytes(run: RealRun, service: str) -> int:
    return sum(path.stat().st_size for path in (run.attempt_dir / "logs" / f"{service}.0").iterdir())


def test_a_flood_of_log_is_bounded_and_delays_nobody(tmp_path: Path) -> None:
    services = {
        "flood": build_program(tmp_path, "flood", FLOODS, stop={"grace": "1s"}),
        "server": build_server(tmp_path, "server"),
    }
    with running(tmp_path, services) as run:
        url, agent = run.url("server"), run.node()["agent_host_pid"]
        logs = run.attempt_dir / "logs" / "flood.0"
        tail, slowest_s, stalest_s, lag_s = logs / "launch-1.tail.0.log", 0.0, 0.0, 0.0

        def has_dropped() -> bool:
            """The gap between head and tail is said in the first line of a half that was begun again."""
            nonlocal slowest_s, stalest_s, lag_s
            begun_s = time.monotonic()
            assert get(url) == "server/0 1"
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            stalest_s = max(stalest_s, time.time() - run.status()["updated_utc"])
            lag_s = max(lag_s, run.node()["lag_s"])
            return tail.exists() and b"were dropped]" in tail.read_bytes()[:100]

        run.wait("the newest output to replace older", has_dropped)
        assert count_log_bytes(run, "flood") <= LOG_BOUND_BYTES
        assert (logs / "launch-1.log").read_bytes().startswith(b"first words\n")
        assert (run.node()["agent_host_pid"], run.node()["agent_starts"]) == (agent, 1)
        assert find_events(run, "server/0", "ReadinessChanged")[1:] == []
        # Generous: the point is that nothing waits for the flood, which lasts as long as the run.
        assert (slowest_s < 5.0, stalest_s < 10.0, lag_s < 1.0) == (True, True, True), (slowest_s, stalest_s, lag_s)
        end_cleanly(run)
        assert count_log_bytes(run, "flood") <= LOG_BOUND_BYTES


def test_bytes_that_are_no_text_and_a_line_without_end_arrive_whole_and_break_nothing(tmp_path: Path) -> None:
    no_restart = {"limit": 0, "backoff": "50ms"}
    services = {
        "noise": build_program(tmp_path, "noise", WRITES_NO_TEXT, restart=no_restart),
        "deaf": build_server(tmp_path, "deaf", NEVER_READS, probes={"readiness": {"tcp": True, "period": "150ms"}}),
        "server": build_server(tmp_path, "server"),
    }
    with running(tmp_path, services) as run:
        died = wait_event(run, "noise/0", "Exited")
        log = run.attempt_dir / "logs" / "noise.0" / "launch-1.log"
        assert log.read_bytes() == bytes(range(256)) * 16 + b"y" * 3_000_000
        assert "exited with code 5" in died["reason"]
        assert 0 < len(died["detail"].encode()) <= 2048
        check_deaf_service(run)
        end_cleanly(run)


def check_deaf_service(run: RealRun) -> None:
    """A big request to a service that never reads: the gateway holds a bounded part of it, and serves the others."""
    ended = threading.Event()
    gateway = run.role_pid("gateway")
    before = read_rss_bytes(gateway)

    def post() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(urllib.request.Request(run.url("deaf"), bytes(200 * MIB)), timeout=2.0)
        except OSError:
            ended.set()

    caller = threading.Thread(target=post)
    caller.start()
    while not ended.is_set():
        assert get(run.url("server")) == "server/0 1"
        assert read_rss_bytes(gateway) - before < 100 * MIB
    caller.join()


def read_rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
