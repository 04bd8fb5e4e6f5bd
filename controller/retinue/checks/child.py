"""The one conversation a child ever has, after it was locked in and before it ends.

Prepare, Prepared, Judge, one Judged, end. The seal (the nonce of the result) follows Judge on the
socket and is read only after the check has returned: nothing inside a check finds it in memory, so a
line that is printed to every descriptor, or a result sent early, is recognised by the host. Honest
limit: code of the policy that runs *inside* the verifier's interpreter (a plugin that evals it) and
knows this protocol can read the seal itself, or change the score before it is sent. A verifier that
runs the policy's code gives it the score; no protocol can take that back.
"""

import os
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from retinue.checks.jail.cell import EVENTS_FD, SOCKET_FD, Cell, lower_limits
from retinue.checks.judging import cut_text, judge, prepare_gold
from retinue.checks.plugin import Verifier
from retinue.checks.records import Judge, Judged, Prepare, Prepared, Seal
from retinue.terms.record import from_json, replace, to_json

LENGTH_BYTES = NUMBER_BYTES = 4
_READ_BYTES = 1 << 20

Message = TypeVar("Message", Prepare, Judge, Seal)


def serve_check(cell: Cell, number: int, verifiers: Mapping[str, Verifier]) -> NoReturn:
    """Have the conversation and end the process; never returns.

    The warm parent hears that this child is locked in, and then that it is no spare any more; nothing of a
    check was read before. A host that hangs up ends it.
    """
    try:
        me = number.to_bytes(NUMBER_BYTES, "big")
        os.write(EVENTS_FD, me)
        prepare = _receive(Prepare)
        os.write(EVENTS_FD, me)
        os.close(EVENTS_FD)
        _converse(cell, prepare, verifiers)
    finally:
        os._exit(0)


def _converse(cell: Cell, prepare: Prepare, verifiers: Mapping[str, Verifier]) -> None:
    lower_limits(cell, prepare.limits)
    limit_bytes = prepare.limits.output_bytes
    verifier = verifiers.get(prepare.verifier)
    if verifier is None:
        return _send(Prepared(prepare.nonce, cut_text(f"no verifier {prepare.verifier!r}", limit_bytes)))
    gold, rejected = prepare_gold(verifier, prepare.gold, prepare.args, limit_bytes)
    _send(Prepared(prepare.nonce, rejected))
    if rejected is not None:
        return None
    response = _receive(Judge).response
    judged = judge(verifier, response, gold, prepare.args, limit_bytes)
    return _send(replace(judged, nonce=_receive(Seal).nonce))


def _receive(kind: type[Message]) -> Message:
    """Read one frame and not a byte more: what follows is the seal's.

    Errors: EOFError when the host hung up.
    """
    size = int.from_bytes(_read(LENGTH_BYTES), "big")
    return from_json(_read(size), kind)


def _read(count: int) -> bytes:
    parts = []
    while count:
        part = os.read(SOCKET_FD, min(count, _READ_BYTES))
        if not part:
            raise EOFError("the host hung up")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _send(message: Prepared | Judged) -> None:
    body = to_json(message)
    frame = memoryview(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    while frame:
        frame = frame[os.write(SOCKET_FD, frame) :]
