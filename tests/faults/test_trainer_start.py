"""What the trainer finds at its first moment."""

import json
import sys
from pathlib import Path

from support.real_run import real_run, server_service

READ = """
import json, os, pathlib
endpoints = json.loads(pathlib.Path(os.environ["RETINUE_ENDPOINTS"]).read_text())
status = json.loads(pathlib.Path(os.environ["RETINUE_ENDPOINTS"]).with_name("status.json").read_text())
pathlib.Path("seen.json").write_text(json.dumps({"endpoints": endpoints["services"], "phase": status["phase"]}))
"""


def test_the_endpoints_file_is_current_before_the_trainer_can_read_it(tmp_path: Path) -> None:
    services = {"web": server_service(replicas=2, min_ready=2), "raw": server_service(protocol="tcp")}
    with real_run(tmp_path, services, [sys.executable, "-c", READ]) as run:
        assert run.wait_end() == 0
        run.status()
        run.assert_nothing_left()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["phase"] == "running"
    assert seen["endpoints"]["web"]["ready"] == 2
    assert len(seen["endpoints"]["raw"]["addresses"]) == 1
