"""Start the keeper of this machine: one child of the stub. No Slurm, no ssh."""

from collections.abc import Mapping
from typing import Any


def build_local_launch(python: str, join_path: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Build the stub's `launch` order for the one local node.

    Shape:  the outer process reads everything else from the join file; `stop_fd` asks the stub to append its stop pipe.
    """
    argv = [python, "-P", "-m", "retinue", "node", join_path]
    return {"op": "launch", "argv": argv, "env": dict(env), "stop_fd": True}
