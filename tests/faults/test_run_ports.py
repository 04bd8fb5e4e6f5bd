"""Every port that the gateways could have is a stranger's: the run ends before anything is started, and says who."""

import subprocess
import sys
from pathlib import Path

from support.command import RETINUE, start_in_scene
from support.real_run import RealRun, server_service

SCENE = """
import fcntl, socket, struct, subprocess, sys
lo = socket.socket()
fcntl.ioctl(lo, 0x8914, struct.pack("16sH14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
# Twenty ports are left outside the range that outgoing connections use: all the candidates there are.
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("1025 64979")
taken = []
for port in range(64980, 65000):
    taken.append(socket.socket())
    taken[-1].bind(("127.0.0.1", port))
    taken[-1].listen()
sys.exit(subprocess.call(sys.argv[1:]))
"""


def test_no_port_for_the_gateways_is_5_with_node_and_holder(tmp_path: Path) -> None:
    (tmp_path / "scene.py").write_text(SCENE)
    run = RealRun(tmp_path, {"server": server_service()}, ["touch", str(tmp_path / "trained")])
    try:
        start_in_scene(run, prefix=("unshare", "-Urn", sys.executable, str(tmp_path / "scene.py")))
        assert run.wait_end() == 5
        verdict = run.verdict()
        run.run_id = verdict["run_id"]
        assert (verdict["ended_by"], verdict["clean"]) == ("not_ready", "true"), verdict
        node = next(iter(verdict["nodes"]))
        assert node in verdict["cause"]
        assert f"pid {run.stub_pid()} (python" in verdict["cause"], "the scene holds them"
        assert not (tmp_path / "trained").exists()
        assert verdict["services"]["server"]["incarnations"] == 0
        run.assert_nothing_left()
    finally:
        run.end_hard()
    why = subprocess.run(
        [*RETINUE, "why", str(run.run_dir)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "port" in why.stdout
