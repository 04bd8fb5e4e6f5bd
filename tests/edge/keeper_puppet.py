"""An agent on strings: passes packets and descriptors between its keeper and the test, and beats by itself.

`python keeper_puppet.py KEEPER_FD SOCKET_PATH`. Standard library only; knows no order but the beat.
"""

import array
import select
import socket
import sys

FDS = socket.CMSG_SPACE(64 * 4)


def pass_on(source: socket.socket, target: socket.socket) -> bool:
    """Pass one packet; False at the end of file."""
    packet, ancillary, _, _ = source.recvmsg(1 << 18, FDS, socket.MSG_CMSG_CLOEXEC)
    if not packet:
        return False
    fds = array.array("i")
    for _, _, rights in ancillary:
        fds.frombytes(rights)
    target.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])
    for fd in fds:
        socket.close(fd)
    return True


def main() -> int:
    keeper = socket.socket(fileno=int(sys.argv[1]))
    test = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    test.connect(sys.argv[2])
    while True:
        keeper.send(b'{"o":"AgentBeat"}')
        ready, _, _ = select.select([keeper, test], [], [], 0.1)
        if keeper in ready and not pass_on(keeper, test):
            return 7
        if test in ready and not pass_on(test, keeper):
            return 3


sys.exit(main())
