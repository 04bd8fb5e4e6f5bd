"""`python -m retinue.sandbox.shard_main PEER_FD FD_FD SERVICE NODE`: one shard process, started by the host."""

import asyncio
import resource
import signal
import socket
import sys

from retinue.node.kernel import set_death_signal
from retinue.sandbox.shard import Shard
from retinue.serving.loops import find_loop_factory


def main(words: list[str]) -> int:
    """Serve until the front hangs up, or is gone."""
    peer_fd, fd_fd, service, node = words
    set_death_signal(signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):
        # The front says when it is time: what ends a process group must not end sandboxes in use before their callers.
        signal.signal(number, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    peer = socket.socket(fileno=int(peer_fd))
    fds = socket.socket(fileno=int(fd_fd))
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        runner.run(_serve(peer, fds, service, node))
    return 0


async def _serve(peer: socket.socket, fds: socket.socket, service: str, node: str) -> None:
    await Shard(peer, fds, service, node).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
