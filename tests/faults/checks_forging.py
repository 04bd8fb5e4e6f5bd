"""Attacks on the result: forged lines, stolen seals, scores that are no numbers.

Each runs inside a check as text. A plugin that runs the policy's code gives it the score: no protocol can take
that back, so what a stolen seal may do is bring *one* finite number for its own check, and nothing else.
"""

import json
import os
import struct

from checks_tools import SOCKET_FD, frame, read_seal


def forge_everywhere(gold):
    """A result on every descriptor there may be, with every nonce one could think of."""
    for fd in range(256):
        for nonce in ("", "0" * 32, "seal", json.dumps(gold)[:40]):
            try:
                os.write(fd, frame(nonce=nonce))
            except OSError:
                break
    return []


def print_a_result(gold):
    for fd in (1, 2):
        os.write(fd, frame())
    print(json.dumps({"outcome": "scored", "score": 1.0}), flush=True)
    return []


def claim_a_huge_frame(gold):
    os.write(SOCKET_FD, b"\xff\xff\xff\xff" + b"x" * 4096)
    return []


def send_rubbish(gold):
    body = gold["body"].encode()
    os.write(SOCKET_FD, struct.pack(">I", len(body)) + body)
    return []


def send_raw_score(gold):
    """With the true seal, as text that Python's own json would write or read."""
    body = f'{{"nonce":"{read_seal()}","score":{gold["score"]},"reason":"","error":null}}'
    os.write(SOCKET_FD, struct.pack(">I", len(body)) + body.encode())
    os._exit(0)


def send_two(gold):
    seal = read_seal()
    os.write(SOCKET_FD, frame(nonce=seal, score=0.25) + frame(nonce=seal, score=1.0) * 50)
    os._exit(0)


def return_value(gold):
    import math

    class Liar(float):
        def __float__(self):
            return math.nan

    class Text(str):
        def __str__(self):
            return "x" * 10**7

        def encode(self, *_):
            raise SystemExit

    values = {
        "nan": math.nan, "inf": math.inf, "1e999": float("1e999"), "text": "1", "none": None, "list": [1.0],
        "liar": Liar(1.0), "three": (0.0, "a", "b"), "huge_int": 10**400, "complex": 1j,
        "long": (0.0, "\x00\x1b[2J\r\n\ud800" * 1_500_000), "evil_text": (0.0, Text("fine")),
    }  # fmt: skip
    return values[gold["value"]]
