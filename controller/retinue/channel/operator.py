"""How a command on the login node asks the controller of a run: one question, one answer.

Synchronous and small; only whoever can read the run's 0600 `control.json` can ask. Asks no
second address once one has taken the question, so that nothing is done twice.
"""

import socket
import time
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
            is not the controller of this run.
    """
    deadline_s = time.monotonic() + timeout_s
    sock = _connect_first(control, deadline_s)
    context = build_client_context(control.ca_pem, control.cert_pem, control.key_pem)
    with sock:
        try:
            with context.wrap_socket(sock, server_hostname=build_server_name(control.run_id)) as stream:
                stream.sendall(build_frame(ask))
                length = parse_length(_read_exactly(stream, 4, deadline_s))
                return parse_frame(_read_exactly(stream, length, deadline_s), Answer)
        except FrameError as error:
            raise PermanentError(f"cannot ask the controller of run {control.run_id!r}: {error}") from None
        except OSError as error:
            raise _build_failure(control, error) from None


def _connect_first(control: Control, deadline_s: float) -> socket.socket:
    failure: OSError = OSError("control.json names no address")
    for host, port in control.addresses:
        remaining_s = deadline_s - time.monotonic()
        try:
            sock = socket.create_connection((host, port), max(0.01, min(CONNECT_TIMEOUT_S, remaining_s)))
        except OSError as error:
            failure = error
            continue
        sock.settimeout(max(0.01, deadline_s - time.monotonic()))
        return sock
    raise _build_failure(control, failure)


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


def _build_failure(control: Control, error: OSError) -> TransientError | PermanentError:
    where = f"{control.host or '?'} (pid {control.pid})"
    text = f"cannot ask the controller of run {control.run_id!r} on {where}: {error}"
    if is_certificate_refusal(error):
        return PermanentError(f"{text}; control.json is not of the run that answers")
    return TransientError(f"{text}; `retinue status` reads the last snapshot without it")
