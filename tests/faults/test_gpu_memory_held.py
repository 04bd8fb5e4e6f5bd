"""A GPU whose memory somebody still has: the next launch waits, says for whom, and goes on when it is free."""

import os
import signal
from pathlib import Path

from service_scenes import end_cleanly, find_events, running

from support.real_run import RealRun, server_service

SMI = """#!/bin/sh
case "$1" in
-L) echo "GPU 0: Fake (UUID: GPU-aaaa)" ;;
--query-gpu=*) if [ -e {held} ]; then echo "0, GPU-aaaa, 61000, 81920"; else echo "0, GPU-aaaa, 5, 81920"; fi ;;
*) if [ -e {held} ]; then echo "GPU-aaaa, 4242, 60990, left-over-engine"; fi ;;
esac
"""


def test_a_relaunch_waits_for_the_memory_of_its_gpu_and_names_the_holder(tmp_path: Path) -> None:
    held, program = tmp_path / "held", tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.format(held=held))
    program.chmod(0o755)
    held.touch()
    services = {"judge": server_service(place={"gpus": 1})}
    with running(tmp_path, services, {"PATH": f"{program.parent}:{os.environ['PATH']}"}) as run:
        # The first launch waits for nobody: what is there may be meant to be.
        first = run.wait_replica("judge/0", "ready")
        os.kill(first["host_pid"], signal.SIGKILL)
        waits = run.wait("the wait", lambda: find_wait(run))
        assert "61000 of 81920 MiB of GPU 0 are held by pid 4242 (left-over-engine), 60990 MiB" in waits
        held.unlink()
        run.wait_replica("judge/0", "ready", 2)
        assert find_events(run, "judge/0", "LaunchRefused") == []
        end_cleanly(run)


def find_wait(run: RealRun) -> str:
    """What the replica is said to wait for."""
    said = [value for value in run.replica("judge/0").values() if isinstance(value, str) and "GPU memory" in value]
    return said[0] if said else ""
