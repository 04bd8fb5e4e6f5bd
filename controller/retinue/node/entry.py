"""How a node finds its way into the run: its join file, and whether what runs here is what the run was started with.

A launcher that starts one command on every node (srun) names the directory of
join files; which of them is ours is in the environment that Slurm gives each task.
"""

import platform
import socket
from collections.abc import Mapping
from pathlib import Path

from retinue import __version__
from retinue.channel.join import Join, read_join
from retinue.errors import PermanentError
from retinue.node.nodedir import find_node_dir
from retinue.terms.record import replace

SUFFIX = ".pem"
NODE_NAME = "SLURMD_NODENAME"
"""Slurm's name of this node; the host may call itself something else."""


def find_node_name(path: Path, env: Mapping[str, str]) -> str:
    """Say which node this is, as far as it can be told without reading anything."""
    return path.stem if path.suffix == SUFFIX else env.get(NODE_NAME) or socket.gethostname()


def read_entry(path: Path, env: Mapping[str, str]) -> Join:
    """Read the join file: the one at this path, or this node's in this directory.

    Shape:  one found by the node's name has the node directory of *this* node: SLURM_TMPDIR may be another elsewhere.
    Errors: PermanentError, to be told with the node's name.
    """
    if path.suffix == SUFFIX:
        join = read_join(path)
    else:
        join = _read_own(path, find_node_name(path, env))
        join = replace(join, node_dir=str(find_node_dir(env, join.run_id)))
    if join.version != __version__:
        raise PermanentError(f"has retinue {__version__}, the run was started with {join.version}")
    here = build_python_version()
    if join.python_version not in ("", here):
        raise PermanentError(f"has Python {here} at {join.python}, the run was started with {join.python_version}")
    return join


def _read_own(directory: Path, node: str) -> Join:
    run_dir = directory.parent
    if not directory.is_dir():
        hint = "it must be on a file system that all nodes share (--run-dir)"
        raise PermanentError(f"does not see the run directory {str(run_dir)!r}; {hint}")
    path = directory / f"{node}{SUFFIX}"
    if not path.exists():
        raise PermanentError(f"has no join file in {str(directory)!r}: {node!r} is not a node of this run")
    return read_join(path)


def build_python_version() -> str:
    """`3.11`: what must be the same on all nodes."""
    return ".".join(platform.python_version_tuple()[:2])
