"""Names in `egress.allow` become addresses when a service is launched, or the launch says which one has none."""

import socket

import pytest

from retinue.errors import TransientError
from retinue.node import egress_names
from retinue.node.egress_names import resolve_rule
from retinue.node.threads import Threads
from retinue.terms.egress import EgressRule


async def test_a_rule_without_names_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_names, "_look_up", lambda host: pytest.fail(f"asked for {host}"))
    rule = EgressRule(allow=("10.0.0.0/8:443", "10.1.2.3", "[2001:db8::/32]:80", "2001:db8::1"))
    assert await resolve_rule(rule, Threads()) == rule
    assert await resolve_rule(None, Threads()) is None


async def test_a_name_becomes_all_its_addresses_with_its_port() -> None:
    found = await resolve_rule(EgressRule(udp="full", allow=("localhost:5432", "10.0.0.1:80")), Threads())
    assert found is not None
    assert found.udp == "full"
    assert "127.0.0.1:5432" in found.allow
    assert found.allow[-1] == "10.0.0.1:80"
    assert set(found.allow) <= {"127.0.0.1:5432", "[::1]:5432", "10.0.0.1:80"}


async def test_a_name_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(egress_names, "_look_up", refuse)
    with pytest.raises(TransientError, match=r"'db\.example'.*egress\.allow.*Name or service not known"):
        await resolve_rule(EgressRule(allow=("db.example:5432",)), Threads())
