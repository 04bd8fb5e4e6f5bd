"""The nonce by which a node proves that it sees the run directory of its run.

Read once per node, then kept in the node directory: an agent that is started again while the shared file system
hangs has nothing new to prove.
"""

import os
from contextlib import suppress

from retinue.errors import TransientError
from retinue.node.threads import Threads
from retinue.terms.run import NONCE

_TRIES = 3


async def read_nonce(threads: Threads, attempt_dir: str, node_dir: str) -> str:
    """Read the run directory's nonce; empty when it does not come: the controller then refuses this node by name."""
    kept_path = os.path.join(node_dir, NONCE)
    with suppress(OSError):
        return _read_text(kept_path)
    for _ in range(_TRIES):
        try:
            nonce = await threads.run(_read_text, os.path.join(attempt_dir, NONCE))
        except TransientError:
            continue
        except OSError:
            break
        _keep(kept_path, nonce)
        return nonce
    return ""


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _keep(path: str, nonce: str) -> None:
    """Write it whole or not at all; a disk that is full costs the next agent a look at the shared one."""
    with suppress(OSError):
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(nonce)
        os.rename(f"{path}.new", path)
