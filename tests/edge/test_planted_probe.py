"""A connect that succeeds is not yet an answer of ours: who listens is asked too."""

import socket

import pytest

from retinue.node.listeners import Holder, Ownership
from retinue.node.probe import Answer, Target, probe_port
from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.replica import Verdict

OURS = Ownership(Holder(pid=1, fd=3, inode=5))
HIDDEN = Ownership(None, is_unreadable=True)
STRANGER = Ownership(None, "answered by pid 7 (not ours)")


@pytest.mark.parametrize(
    ("owner", "answer"),
    [
        (OURS, Answer(Verdict.PASS)),
        (HIDDEN, Answer(Verdict.PASS)),
        (STRANGER, Answer(Verdict.FAIL, "answered by pid 7 (not ours)")),
    ],
)
async def test_a_port_that_a_stranger_answers_is_not_healthy(owner: Ownership, answer: Answer) -> None:
    async def tell_owner(port: int, address: str) -> Ownership:
        return owner

    with socket.create_server(("127.0.0.1", 0)) as server:
        target = Target(("127.0.0.1",), server.getsockname()[1], tell_owner)
        spec = ProbeSpec(ProbeKind.READINESS, tcp=True, timeout_s=20.0)
        assert await probe_port(spec, target, lambda: 0.0) == answer
