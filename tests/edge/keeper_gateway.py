"""A gateway of few words: answers every connection on the inherited socket with its pid, one line.

`python keeper_gateway.py LISTEN_FD`.
"""

import os
import socket
import sys

listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    connection.sendall(b"%d\n" % os.getpid())
    connection.close()
