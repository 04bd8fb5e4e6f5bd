"""A guarded service that does what it is told: `python egress_actor.py SOCKET_PATH`.

Connects to the test's unix socket, reads one line of Python per request, runs it and answers
one line of JSON: [value] or {"errno": n}. Standard library only; every name below is for those lines.
"""

import array  # noqa: F401
import ctypes
import errno  # noqa: F401
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time  # noqa: F401

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
KEPT = []
"""What a line wants to outlive it."""


def call(number, *arguments):
    """A system call by number; its result, or OSError."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "call")
    return result


def tcp(address, port, timeout=5.0, family=None):
    """Connect, and say what was read from the other side."""
    with socket.socket(family or (socket.AF_INET6 if ":" in address else socket.AF_INET)) as end:
        end.settimeout(timeout)
        end.connect((address, port))
        return end.recv(64).decode()


def udp(address, port, payload=b"ping", family=None):
    """Send a datagram to an address and read the answer."""
    with socket.socket(family or (socket.AF_INET6 if ":" in address else socket.AF_INET), socket.SOCK_DGRAM) as end:
        end.settimeout(5.0)
        end.sendto(payload, (address, port))
        return end.recv(64).decode()


def connect_raw(family, kind, sockaddr):
    """Connect a socket with the bytes of an address."""
    with socket.socket(family, kind) as end:
        if LIBC.connect(end.fileno(), sockaddr, len(sockaddr)) < 0:
            raise OSError(ctypes.get_errno(), "connect")
        return 0


def sendto_raw(family, sockaddr, payload=b"ping", flags=0, kind=socket.SOCK_DGRAM):
    """Send with the bytes of an address."""
    with socket.socket(family, kind) as end:
        count = LIBC.sendto(end.fileno(), payload, len(payload), flags, sockaddr, len(sockaddr))
        if count < 0:
            raise OSError(ctypes.get_errno(), "sendto")
        return count


def in4(address, port, family=socket.AF_INET):
    """struct sockaddr_in."""
    return struct.pack("=H", family) + struct.pack("!H4s8x", port, socket.inet_aton(address))


def in6(address, port):
    """struct sockaddr_in6."""
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", port, 0, socket.inet_pton(10, address), 0)


def serve():
    """Be the outside: a TCP and a UDP server on every address, which say hello; their port."""
    stream, datagram = socket.socket(socket.AF_INET6), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    stream.bind(("::", 0))
    port = stream.getsockname()[1]
    datagram.bind(("::", port))
    stream.listen(64)

    def greet():
        while True:
            end, _ = stream.accept()
            end.sendall(b"inside out")
            end.close()

    def echo():
        while True:
            _, peer = datagram.recvfrom(70000)
            datagram.sendto(b"inside out", peer)

    for loop in (greet, echo):
        threading.Thread(target=loop, daemon=True).start()
    return port


def send_many(addresses):
    """sendmmsg(2) from one UDP socket, a message to each address."""
    kept, headers = [], b""
    for address in addresses:
        name = ctypes.create_string_buffer(address, max(len(address), 1))
        part = ctypes.create_string_buffer(b"x", 1)
        vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(part), 1))
        kept += [name, part, vector]
        place = ctypes.addressof(name) if address else 0
        headers += struct.pack("QI4xQQQQi4xI4x", place, len(address), ctypes.addressof(vector), 1, 0, 0, 0, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        number = 307 if os.uname().machine == "x86_64" else 269
        return call(number, end.fileno(), ctypes.create_string_buffer(headers), len(addresses), 0)


def race(outside, port, count):
    """Connect while another thread turns the address from loopback to the outside and back; how often it got out."""
    inside = in4("127.0.0.1", port)
    memory = ctypes.create_string_buffer(inside, len(inside))
    is_over = threading.Event()

    def flip():
        places = [socket.inet_aton(outside), socket.inet_aton("127.0.0.1")] * 50
        at = ctypes.addressof(memory) + 4
        while not is_over.is_set():
            for place in places:
                ctypes.memmove(at, place, 4)

    thread = threading.Thread(target=flip)
    thread.start()
    escaped = 0
    for _ in range(count):
        with socket.socket() as end:
            if LIBC.connect(end.fileno(), memory, len(inside)) == 0:
                escaped += end.getpeername()[0] == outside
    is_over.set()
    thread.join()
    return escaped


def connect_blocking(address, port, alarm_s=0.0, send_timeout_s=0.0):
    """A bare blocking connect, with a signal or a send timeout on its way."""
    with socket.socket(socket.AF_INET) as end:
        if send_timeout_s:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, int(send_timeout_s * 1e6)))
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        if alarm_s:
            signal.setitimer(signal.ITIMER_REAL, alarm_s)
        sockaddr = in4(address, port)
        if LIBC.connect(end.fileno(), sockaddr, len(sockaddr)) < 0:
            raise OSError(ctypes.get_errno(), "connect")
        return struct.unpack("ll", end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))


def run_python(code, *prefix):
    """Run code in a child, below the words of `prefix`; its exit code is an errno, or 0."""
    wrapped = f"import socket, sys\ntry:\n    {code}\nexcept OSError as error:\n    sys.exit(error.errno)\n"
    return subprocess.run([*prefix, sys.executable, "-c", wrapped], timeout=60, check=False).returncode


def main():
    test = socket.socket(socket.AF_UNIX)
    test.connect(sys.argv[1])
    lines = test.makefile("r")
    test.sendall(json.dumps([os.getpid()]).encode() + b"\n")
    for line in lines:
        try:
            answer = [eval(json.loads(line), globals())]
        except OSError as error:
            answer = {"errno": error.errno}
        except (AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError) as error:
            answer = {"wrong": f"{error!r} in {line}"}
        test.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
