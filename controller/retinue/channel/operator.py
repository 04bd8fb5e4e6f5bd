"""How a command on the login node asks the controller of a run: one question, one answer.

Synchronous and small; only whoever can read the run's 0600 `control.json` can ask. Several addresses are tried, each
for a short time; asks no second one once one has taken the question, so that nothing is done twice.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from retinue.channel.context import CONNECT_TIMEOUT_S, build_client_context, build_server_name, is_certificate_refusal
from retinue.channel.frames import FrameError, build_frame, parse_frame, parse_length
from retinue.channel.messages import Answer, Ask
from retinue.channel.secret_file import read_secret, replace_secret
from retinue.errors import PermanentError, TransientError
from retinue.terms.record import DecodeError, Record, from_json, to_pretty_json


class Control(Record, frozen=True):
    """Content of `control.json`: where the controller is, and the key to talk to it."""

    run_id: str
    addresses: tuple[tuple[str, int], ...]
    """(host, port), tried in order."""
    ca_pem: str
    cert_pem: str
    key_pem: str
    host: str = ""
    """Node the controller runs on."""
    pid: int = 0
    """The controller's, on that node."""


def write_control(path: Path, control: Control) -> None:
    """Write `control.json` in one step, 0600; a restarted controller replaces it.

    Errors: TransientError on a full disk; PermanentError otherwise.
    """
    replace_secret(path, to_pretty_json(control))


def read_control(path: Path) -> Control:
    """Read `control.json` after checking that it is ours alone.

    Errors: PermanentError when it is missing, foreign, readable by others, or not a control record.
    """
    try:
        return from_json(read_secret(path), Control)
    except DecodeError as error:
        raise PermanentError(f"cannot read {str(path)!r}: {error}") from None


def ask_controller(control: Control, ask: Ask, timeout_s: float = 10.0) -> Answer:
    """Ask and wait for the one answer.

    Units:  timeout_s covers connecting and waiting together.
    Errors: TransientError when no controller answers in time; PermanentError when what answers
            is not the controller of this run. Both say which addresses were tried.
    """
    deadline_s = time.monotonic() + timeout_s
    stream, where = _connect_first(control, deadline_s)
    with stream:
        try:
            stream.settimeout(max(0.01, deadline_s - time.monotonic()))
            stream.sendall(build_frame(ask))
            length = parse_length(_read_exactly(stream, 4, deadline_s))
            return parse_frame(_read_exactly(stream, length, deadline_s), Answer)
        except FrameError as error:
            raise PermanentError(f"cannot ask the controller of run {control.run_id!r}: {error}") from None
        except OSError as error:
            raise _build_failure(control, [(where, error)]) from None


def _connect_first(control: Control, deadline_s: float) -> tuple[ssl.SSLSocket, str]:
    """Connect to the first address where the controller of this run is; a stranger at another one is passed by."""
    context = build_client_context(control.ca_pem, control.cert_pem, control.key_pem)
    addresses = _sort_addresses(control)
    failures: list[tuple[str, OSError]] = []
    for number, (host, port) in enumerate(addresses):
        # One that swallows every packet must leave time for those after it, and for the answer.
        share_s = (deadline_s - time.monotonic()) / (len(addresses) - number + 1)
        try:
            stream = _connect(control, context, host, port, max(0.01, min(CONNECT_TIMEOUT_S, share_s)))
        except OSError as error:
            failures.append((f"{host}:{port}", error))
        else:
            return stream, f"{host}:{port}"
    raise _build_failure(control, failures)


def _sort_addresses(control: Control) -> list[tuple[str, int]]:
    """In their order; on another host loopback comes last: there it is somebody else's."""
    is_elsewhere = control.host not in ("", socket.gethostname())
    return sorted(control.addresses, key=lambda address: is_elsewhere and _is_loopback(address[0]))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _connect(control: Control, context: ssl.SSLContext, host: str, port: int, limit_s: float) -> ssl.SSLSocket:
    """Connect, and see a certificate of this run. `limit_s` is for either."""
    sock = socket.create_connection((host, port), limit_s)
    try:
        return context.wrap_socket(sock, server_hostname=build_server_name(control.run_id))
    except OSError:
        sock.close()
        raise


def _read_exactly(stream: socket.socket, count: int, deadline_s: float) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        stream.settimeout(max(0.01, deadline_s - time.monotonic()))
        chunk = stream.recv(min(count - len(parts), 65536))
        if not chunk:
            raise ConnectionError(
                "it closed the connection without an answer (ending, or control.json is of another run)"
            )
        parts += chunk
    return bytes(parts)


def _build_failure(control: Control, failures: Sequence[tuple[str, OSError]]) -> TransientError | PermanentError:
    """Say who could not be asked, and what each address answered; permanent when all of them are strangers."""
    tried = ", ".join(f"{where}: {error}" for where, error in failures) or "control.json names no address"
    text = f"cannot ask the controller of run {control.run_id!r} on {control.host or '?'} ({tried})"
    if failures and all(is_certificate_refusal(error) for _, error in failures):
        return PermanentError(f"{text}; control.json is not of the run that answers")
    return TransientError(f"{text}; `retinue status` reads the last snapshot without it")
