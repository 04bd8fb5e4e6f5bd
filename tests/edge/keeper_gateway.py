"""A gateway of few words: answers every connection on the inherited socket with its pid, one line, and beats.

`python keeper_gateway.py LISTEN_FD BEAT_FD`.
"""

import os
import select
import socket
import sys

listener, beat_fd = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
while True:
    os.write(beat_fd, b".")
    if not select.select([listener], [], [], 0.1)[0]:
        continue
    connection, _ = listener.accept()
    connection.sendall(b"%d\n" % os.getpid())
    connection.close()
