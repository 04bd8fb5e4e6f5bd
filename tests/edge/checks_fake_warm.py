"""A warm parent without a jail whose children do what the response says: for faults that a real one cannot have.

Speaks the contract of `retinue.checks.records`. Options: `--broken`, `--silent`, `--barren` (warm, but no spare).
"""

import argparse
import ctypes
import json
import os
import select
import signal
import socket
import time
from typing import NoReturn

PR_SET_PDEATHSIG = 1

parser = argparse.ArgumentParser()
parser.add_argument("--control-fd", type=int, required=True)
parser.add_argument("--config", required=True)
parser.add_argument("--broken", action="store_true")
parser.add_argument("--silent", action="store_true")
parser.add_argument("--barren", action="store_true")
words = parser.parse_args()


def read(fd: int, count: int) -> bytes:
    whole = b""
    while len(whole) < count:
        part = os.read(fd, count - len(whole))
        if not part:
            os._exit(0)
        whole += part
    return whole


def receive(fd: int) -> dict[str, object]:
    return json.loads(read(fd, int.from_bytes(read(fd, 4), "big")))


def send(fd: int, message: object) -> None:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    os.write(fd, len(body).to_bytes(4, "big") + body)


def obey(fd: int, response: str) -> None:
    """Do what the response says, then send the one result."""
    word, _, rest = response.partition(" ")
    if word == "exit":
        os._exit(int(rest))
    elif word == "raise-signal":
        os.kill(os.getpid(), int(rest))
    elif word == "kill-warm":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    elif word == "hang":
        time.sleep(600)
    elif word == "spin":
        while True:
            pass
    elif word == "deaf":
        os.close(fd)
        time.sleep(600)
    elif word == "forge":
        send(fd, {"nonce": "guessed", "score": 1.0})
    elif word == "babble":
        send(fd, b"no json")
    elif word == "flood":
        os.write(fd, (2**31).to_bytes(4, "big") + b"x" * 1000)
    elif word == "wait-for":
        open(f"{rest}.started", "w").close()
        while not os.path.exists(rest):
            time.sleep(0.01)


def be_child(fd: int) -> NoReturn:
    prepare = receive(fd)
    gold = str(prepare["gold"])
    if gold.startswith("prepare-"):
        obey(fd, gold.removeprefix("prepare-"))
    is_wrong = gold == "wrong"
    send(fd, {"nonce": prepare["nonce"], "rejected": "the gold is wrong" if is_wrong else None})
    response = str(receive(fd)["response"])
    obey(fd, response)
    seal = receive(fd)["nonce"]
    result = {"nonce": seal, "score": 1.0 if response == str(prepare["gold"]) else 0.0, "reason": response[:20]}
    if response == "raised":
        result["error"] = "ValueError: raised"
    send(fd, result)
    if response == "twice":
        send(fd, result)
    os._exit(0)


def fork_spare(control: socket.socket, number: int) -> int:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        control.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        be_child(theirs.fileno())
    pidfd = os.pidfd_open(pid)
    socket.send_fds(control, [json.dumps({"w": "Spare", "child": number}).encode()], [ours.fileno(), pidfd])
    os.close(pidfd)
    ours.close()
    theirs.close()
    return pid


def run() -> None:
    control = socket.socket(fileno=words.control_fd)
    config = json.loads(os.read(int(words.config), 1 << 20))
    if words.broken:
        control.send(json.dumps({"w": "Broken", "verifier": "mine", "cause": "ImportError: no"}).encode())
        os._exit(1)
    if words.silent:
        time.sleep(600)
    control.send(json.dumps({"w": "Warmed", "verifiers": config["verifiers"], "rung": "fake"}).encode())
    wanted, number = 0, 0
    children: dict[int, int] = {}
    while True:
        if select.select([control], [], [], 0.01)[0]:
            packet = control.recv(65536)
            if not packet:
                break
            wanted = json.loads(packet)["spares"]
        # It does not know who is taken: it keeps so many alive beyond those, which is enough for a fake.
        while not words.barren and len(children) < wanted + 4:
            number += 1
            children[fork_spare(control, number)] = number
        while children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            code = os.waitstatus_to_exitcode(status)
            ended = {"w": "Ended", "child": children.pop(pid), "cpu_s": usage.ru_utime + usage.ru_stime}
            ended |= {"code": max(code, 0) if code >= 0 else None, "signal": -code if code < 0 else None}
            control.send(json.dumps(ended | {"max_rss_bytes": usage.ru_maxrss * 1024}).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)


run()
