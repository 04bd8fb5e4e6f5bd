"""Certificates that no clock can spoil, and files of keys that nobody else has touched."""

import asyncio
import datetime
import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_scenes import (
    DEADLINE_S,
    RUN,
    Desk,
    authority,
    bind_listener,
    build_control,
    build_join,
    certificate,
    serving,
)
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from retinue.channel.certs import build_authority, build_certificate
from retinue.channel.context import build_server_context
from retinue.channel.join import build_join as build_join_text
from retinue.channel.join import parse_join, read_join, write_join
from retinue.channel.messages import Answer, Ask
from retinue.channel.operator import Control, ask_controller, read_control, write_control
from retinue.errors import EdgeError, PermanentError, TransientError
from retinue.terms.record import replace

NOW = datetime.datetime.now()


def policy(when: datetime.datetime, run_id: str = RUN) -> PolicyBuilder:
    store = Store([x509.load_pem_x509_certificate(authority(run_id).ca_pem.encode())])
    return PolicyBuilder().store(store).time(when)


@pytest.mark.parametrize("year", [1970, 1999, NOW.year, NOW.year + 9])
def test_a_skewed_clock_does_not_spoil_a_certificate(year: int) -> None:
    when = datetime.datetime(year, 1, 2)
    server = x509.load_pem_x509_certificate(certificate("controller", "controller")[0].encode())
    policy(when).build_server_verifier(x509.DNSName(f"retinue-{RUN}")).verify(server, [])
    agent = x509.load_pem_x509_certificate(certificate("agent", "n1")[0].encode())
    policy(when).build_client_verifier().verify(agent, [])


def test_certificates_verify_only_under_their_own_run_and_role() -> None:
    agent = x509.load_pem_x509_certificate(certificate("agent", "n1")[0].encode())
    with pytest.raises(VerificationError):
        policy(NOW, "ffffffffffff").build_client_verifier().verify(agent, [])
    with pytest.raises(VerificationError):
        policy(NOW).build_server_verifier(x509.DNSName(f"retinue-{RUN}")).verify(agent, [])


def test_node_names_of_any_legal_length_get_a_certificate() -> None:
    cert_pem, key_pem = build_certificate(authority(), "agent", "n" * 60 + "." + "d" * 60)
    build_server_context(authority().ca_pem, cert_pem, key_pem)
    for name in ("", "a b", "x:controller", "é", "n" * 300):
        with pytest.raises(PermanentError):
            build_certificate(authority(), "agent", name)


def test_two_authorities_of_one_run_do_not_know_each_other() -> None:
    twin = build_authority(RUN)
    cert_pem, key_pem = build_certificate(twin, "agent", "n1")
    leaf = x509.load_pem_x509_certificate(cert_pem.encode())
    with pytest.raises(VerificationError):
        policy(NOW).build_client_verifier().verify(leaf, [])
    assert "PRIVATE KEY" in key_pem


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener() as sock:
        yield sock


def test_a_join_file_comes_back_as_it_went_and_openssl_reads_it(tmp_path: Path, listener: socket.socket) -> None:
    join = build_join(listener, "node-7")
    path = tmp_path / "node-7.pem"
    write_join(path, join)
    assert read_join(path) == join
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["node-7.pem"]
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)


def test_a_second_join_file_of_a_node_is_refused(tmp_path: Path, listener: socket.socket) -> None:
    join = build_join(listener)
    path = tmp_path / "n1.pem"
    write_join(path, join)
    with pytest.raises(PermanentError, match="exists"):
        write_join(path, replace(join, attempt=7))
    assert read_join(path).attempt == 0
    with pytest.raises(PermanentError, match="No such file"):
        write_join(tmp_path / "gone" / "n1.pem", join)


def test_a_join_file_is_made_where_there_are_no_hard_links(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    join = build_join(listener)
    write_join(tmp_path / "n1.pem", join)
    assert read_join(tmp_path / "n1.pem") == join
    with pytest.raises(PermanentError):
        write_join(tmp_path / "n1.pem", join)
    assert os.listdir(tmp_path) == ["n1.pem"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_of_keys_that_others_may_touch_is_refused(tmp_path: Path, listener: socket.socket, mode: int) -> None:
    path = tmp_path / "n1.pem"
    write_join(path, build_join(listener))
    path.chmod(mode)
    with pytest.raises(PermanentError, match="0600"):
        read_join(path)


def test_what_is_not_a_plain_file_is_refused_without_hanging(tmp_path: Path, listener: socket.socket) -> None:
    write_join(tmp_path / "real.pem", build_join(listener))
    (tmp_path / "link.pem").symlink_to("real.pem")
    os.mkfifo(tmp_path / "fifo.pem", 0o600)
    (tmp_path / "dir.pem").mkdir()
    for name in ("link.pem", "fifo.pem", "dir.pem", "none.pem"):
        with pytest.raises(PermanentError):
            read_join(tmp_path / name)


@pytest.mark.root
def test_a_file_of_keys_that_another_user_owns_is_refused(tmp_path: Path, listener: socket.socket) -> None:
    path = tmp_path / "n1.pem"
    write_join(path, build_join(listener))
    os.chown(path, 12345, 12345)
    with pytest.raises(PermanentError, match="12345"):
        read_join(path)


def test_half_a_join_is_no_join(listener: socket.socket) -> None:
    text = build_join_text(build_join(listener))
    for broken in (b"", text[:200], text[: len(text) // 2], text.replace(b'"run_id"', b'"ran_id"'), b"\xff" * 90):
        with pytest.raises(PermanentError):
            parse_join(broken)


async def ask(control: Control, question: Ask, timeout_s: float = DEADLINE_S) -> Answer:
    """Ask from a thread: the controller's loop is this one."""
    return await asyncio.to_thread(ask_controller, control, question, timeout_s)


async def test_an_operator_asks_and_is_answered(tmp_path: Path, listener: socket.socket) -> None:
    desk = Desk()
    write_control(tmp_path / "control.json", build_control(listener))
    write_control(tmp_path / "control.json", build_control(listener))
    assert os.listdir(tmp_path) == ["control.json"]
    control = read_control(tmp_path / "control.json")
    async with serving(listener, desk):
        assert await ask(control, Ask("restart", "judge/0")) == Answer(True, "restart judge/0")
    assert desk.asks == [Ask("restart", "judge/0")]


async def test_a_refused_ask_is_an_answer_and_a_late_one_is_not(listener: socket.socket) -> None:
    async def refuse(question: Ask) -> Answer:
        if question.command == "restart":
            raise PermanentError("cannot restart 'x': no such service")
        await asyncio.Event().wait()
        raise AssertionError

    desk = Desk()
    desk.answer = refuse
    control = build_control(listener)
    async with serving(listener, desk) as server:
        assert await ask(control, Ask("restart", "x")) == Answer(False, "cannot restart 'x': no such service")
        with pytest.raises(TransientError, match="timed out"):
            await ask(control, Ask("down"), 0.3)
        assert server.connected == ()


async def test_nobody_there_and_somebody_else_there_are_told_apart(listener: socket.socket) -> None:
    control = build_control(listener)
    with bind_listener() as other:
        dead = other.getsockname()
    with pytest.raises(TransientError, match="retinue status"):
        await ask(replace(control, addresses=(dead,)), Ask("down"))
    with pytest.raises(EdgeError):
        await ask(replace(control, addresses=()), Ask("down"))
    desk = Desk()
    async with serving(listener, desk):
        with pytest.raises(PermanentError, match="not of the run"):
            await ask(build_control(listener, run_id="ffffffffffff"), Ask("down"))
        with pytest.raises(EdgeError, match="another run"):
            await ask(build_control(listener, signer="ffffffffffff"), Ask("down"))
    assert desk.asks == []


@pytest.mark.parametrize("module", ["client", "join", "operator", "wire"])
def test_the_agents_end_imports_the_standard_library_and_msgspec_only(module: str) -> None:
    # What msgspec itself loads differs by version; what we add to it must be ours alone.
    program = (
        f"import sys, msgspec; before = set(sys.modules); import retinue.channel.{module};"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["retinue"]
