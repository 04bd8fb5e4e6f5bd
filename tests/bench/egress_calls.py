"""Calls of a service, timed: `python egress_calls.py` prints one JSON object, microseconds for each (medians)."""

import errno
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

ROUNDS = 2000
STORM = 500


def time_calls(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median of one call, in microseconds."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def connect(family: int, address: object) -> None:
    with socket.socket(family) as end:
        end.connect_ex(address)


def try_datagram() -> None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    except OSError as error:
        if error.errno != errno.EACCES:
            raise


def storm(port: int) -> float:
    """Wall time of many threads that connect at once, in microseconds for each."""
    threads = [threading.Thread(target=connect, args=(socket.AF_INET, ("127.0.0.1", port))) for _ in range(STORM)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / STORM * 1e6


def accept(server: socket.socket) -> None:
    while True:
        server.accept()[0].close()


def main() -> None:
    with tempfile.TemporaryDirectory() as place, socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        port = server.getsockname()[1]
        path = os.path.join(place, "s")
        local = socket.socket(socket.AF_UNIX)
        local.bind(path)
        local.listen(1024)
        for each in (server, local):
            threading.Thread(target=accept, args=(each,), daemon=True).start()
        one, other = socket.socketpair()
        threading.Thread(target=lambda: [None for _ in iter(lambda: other.recv(1 << 16), b"")], daemon=True).start()
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))
        nobody = closed.getsockname()
        found = {
            "connect, TCP on loopback": time_calls(lambda: connect(socket.AF_INET, ("127.0.0.1", port))),
            "connect, nobody listens": time_calls(lambda: connect(socket.AF_INET, nobody)),
            "connect, unix": time_calls(lambda: connect(socket.AF_UNIX, path)),
            "connect, denied if guarded (non-blocking)": time_calls(try_outside),
            "socket, datagram": time_calls(try_datagram),
            "send, 64 bytes": time_calls(lambda: one.send(b"x" * 64), 5 * ROUNDS),
            f"connect, {STORM} threads at once": storm(port),
        }
        json.dump(found, sys.stdout)
        sys.stdout.flush()
        os._exit(0)


def try_outside() -> None:
    with socket.socket() as end:
        end.setblocking(False)
        end.connect_ex(("192.0.2.1", 9))


if __name__ == "__main__":
    main()
