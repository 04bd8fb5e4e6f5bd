"""Whose fault a failed exchange was."""

import errno
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from retinue.gateway.faults import (
    BLAMES,
    CAUSE_CHARS,
    Blame,
    Fault,
    build_fault,
    parse_fault,
    translate_error,
    translate_way_error,
)

KEY = ConnectionKey("127.0.0.1", 1, False, True, None, None, None)


def list_client_errors() -> list[type[Exception]]:
    kinds = [getattr(aiohttp, name) for name in dir(aiohttp)]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, aiohttp.ClientError)]


def test_every_error_of_the_client_library_is_one_we_thought_of() -> None:
    fallback = BLAMES[-1][0]
    named = {kind for kind, _ in BLAMES[:-1]}
    unmapped = [kind for kind in list_client_errors() if not any(issubclass(kind, known) for known in named)]
    # Redirects are never followed, URLs are always http, uploads are not tracked: the fallback has these.
    impossible = ("ClientError", "RedirectClientError", "NonHttpUrl", "UploadAborted")
    assert [kind for kind in unmapped if not kind.__name__.startswith(impossible)] == []
    assert fallback is aiohttp.ClientError


@pytest.mark.parametrize("number", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT])
def test_a_connect_that_failed_is_the_backends_absence(number: int) -> None:
    fault = translate_error(aiohttp.ClientConnectorError(KEY, OSError(number, "x")))
    assert fault.blame is Blame.UNREACHED


def test_a_port_where_nobody_listens_is_a_backend_that_is_gone_and_not_one_that_a_network_hides() -> None:
    refused = aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNREFUSED, "x"))
    assert translate_error(refused).blame is Blame.GONE
    assert translate_error(aiohttp.ConnectionTimeoutError()).blame is Blame.UNREACHED
    # On the way to another node's gateway it says nothing of the backend there.
    assert translate_way_error(refused).blame is Blame.UNREACHED
    assert translate_way_error(aiohttp.ServerDisconnectedError()).blame is Blame.BROKEN


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM])
def test_our_own_shortage_is_never_the_backends_fault(number: int) -> None:
    assert translate_error(aiohttp.ClientConnectorError(KEY, OSError(number, "x"))).blame is Blame.OURS
    assert translate_error(OSError(number, "x")).blame is Blame.OURS


def test_a_connection_that_ended_before_the_answer_may_have_been_seen() -> None:
    assert translate_error(aiohttp.ServerDisconnectedError()).blame is Blame.BROKEN
    assert translate_error(aiohttp.ClientOSError(errno.ECONNRESET, "x")).blame is Blame.BROKEN
    assert translate_error(ConnectionResetError()).blame is Blame.BROKEN


def test_a_connect_timeout_is_not_a_broken_exchange() -> None:
    assert translate_error(aiohttp.ConnectionTimeoutError()).blame is Blame.UNREACHED


def test_the_cause_never_quotes_what_was_exchanged() -> None:
    fault = translate_error(aiohttp.ClientPayloadError("secret body"))
    assert "secret" not in str(fault)


def test_openssls_numbers_are_not_taken_for_a_shortage_of_ours() -> None:
    """SSL_ERROR_SSL is 1, and so is EPERM."""
    refused = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] certificate required (_ssl.c:2580)")
    later = aiohttp.ClientOSError(1, str(refused))
    later.__cause__ = refused
    assert translate_error(aiohttp.ClientConnectorSSLError(KEY, refused)).blame is Blame.UNREACHED
    assert translate_error(refused).blame is Blame.BROKEN
    assert translate_error(later).blame is Blame.BROKEN
    wrong = ssl.SSLCertVerificationError("expected node 'n2', met agent 'n3' of run 'r'")
    fault = translate_error(aiohttp.ClientConnectorCertificateError(KEY, wrong))
    assert fault.blame is Blame.UNREACHED
    assert "expected node 'n2', met agent 'n3'" in str(fault)


@pytest.mark.parametrize("blame", list(Blame))
def test_a_fault_travels_between_gateways_as_one_line(blame: Blame) -> None:
    said = build_fault(Fault(blame, "caf\u00e9\r\nX-Forged: 1 " + "x" * 9000))
    assert said.isascii()
    assert said.isprintable()
    told = parse_fault(said)
    assert told.blame is blame
    assert str(told).startswith("caf???X-Forged: 1 xx")
    assert len(str(told)) == CAUSE_CHARS


def test_what_another_version_says_counts_as_broken() -> None:
    assert parse_fault("vanished for good").blame is Blame.BROKEN
