"""The run's keys: made by its first controller, read by every later one.

The authority's key stays 0600 in the batch host's node directory. Each node's
way in is one 0600 join file, the operator's is `control.json`.
"""

import secrets
import socket
from pathlib import Path

from retinue.channel.certs import Authority, build_authority, build_certificate
from retinue.channel.join import BatchHost, Join, write_join
from retinue.channel.operator import Control, write_control
from retinue.errors import EdgeError, NotReadyError, PermanentError
from retinue.node.addresses import list_addresses
from retinue.node.entry import build_python_version
from retinue.plan.records import Plan
from retinue.terms import run as files
from retinue.terms.record import DecodeError, Record, from_json, to_json
from retinue.terms.run import RunRecord

ANY_HOST = ("::", "0.0.0.0")


class RunKeys(Record, frozen=True):
    """Everything secret that the controller holds; `<node dir>/controller/keys.json`, 0600."""

    ca_pem: str
    ca_key_pem: str
    cert_pem: str
    key_pem: str
    operator_cert_pem: str
    operator_key_pem: str
    nonce: str
    token: str


def prepare_keys(record: RunRecord, plan: Plan, port: int) -> RunKeys:
    """Make or read the run's keys.

    The shared files are written by the first controller only: the listener outlives controllers, so nothing in
    them changes, and a later one must start beside a hung file system.
    Errors: NotReadyError when they cannot be written: nothing of the run has started, and trying again is no help.
            PermanentError when a later controller cannot read them.
    """
    path = Path(record.node_dir) / "controller" / "keys.json"
    if path.exists():
        return _read_keys(path)
    keys = _build_keys(record)
    addresses = tuple((host, port) for host in list_hosts(record))
    try:
        _write_shared_files(record, plan, keys, addresses)
        _write_control(record, keys, addresses)
    except (OSError, EdgeError) as error:
        raise _build_refusal(record.run_dir, error, "choose another place with --run-dir") from None
    try:
        _write_keys(path, keys)
    except OSError as error:
        hint = "let SLURM_TMPDIR name another place (without it: /tmp)"
        raise _build_refusal(str(path.parent), error, hint) from None
    return keys


def list_hosts(record: RunRecord) -> tuple[str, ...]:
    """List where the controller can be dialled: never loopback for other nodes, the host's name as the last resort."""
    if record.listen_host not in ANY_HOST:
        return (record.listen_host,)
    return (*list_addresses(), socket.gethostname())


def _read_keys(path: Path) -> RunKeys:
    try:
        return from_json(path.read_bytes(), RunKeys)
    except (OSError, DecodeError) as error:
        raise PermanentError(f"cannot read the run's keys: {error}") from None


def _write_keys(path: Path, keys: RunKeys) -> None:
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(to_json(keys))
    fresh.rename(path)


def _build_refusal(place: str, error: OSError | EdgeError, hint: str) -> NotReadyError:
    cause = error.strerror if isinstance(error, OSError) else error
    return NotReadyError(f"cannot write the run's keys in {place!r}: {cause}; free some space there, or {hint}")


def _build_keys(record: RunRecord) -> RunKeys:
    authority = build_authority(record.run_id)
    cert_pem, key_pem = build_certificate(authority, "controller", f"retinue-{record.run_id}")
    operator_cert_pem, operator_key_pem = build_certificate(authority, "operator", "operator")
    return RunKeys(
        ca_pem=authority.ca_pem,
        ca_key_pem=authority.ca_key_pem,
        cert_pem=cert_pem,
        key_pem=key_pem,
        operator_cert_pem=operator_cert_pem,
        operator_key_pem=operator_key_pem,
        nonce=secrets.token_hex(16),
        token=secrets.token_urlsafe(32),
    )


def _write_control(record: RunRecord, keys: RunKeys, addresses: tuple[tuple[str, int], ...]) -> None:
    control = Control(
        run_id=record.run_id,
        addresses=addresses,
        ca_pem=keys.ca_pem,
        cert_pem=keys.operator_cert_pem,
        key_pem=keys.operator_key_pem,
        host=socket.gethostname(),
    )
    write_control(Path(record.run_dir) / files.CONTROL, control)


def _write_shared_files(record: RunRecord, plan: Plan, keys: RunKeys, addresses: tuple[tuple[str, int], ...]) -> None:
    attempt_dir, run_dir = Path(record.attempt_dir), Path(record.run_dir)
    (attempt_dir / files.NONCE).write_text(keys.nonce)
    token_path = run_dir / files.TOKEN
    token_path.unlink(missing_ok=True)
    token_path.touch(mode=0o600)
    token_path.write_text(keys.token)
    join_dir = run_dir / files.JOIN
    join_dir.mkdir(mode=0o700, exist_ok=True)
    authority = Authority(record.run_id, keys.ca_pem, keys.ca_key_pem)
    for node in plan.allocation.nodes:
        cert_pem, key_pem = build_certificate(authority, "agent", node.name)
        join = Join(
            run_id=record.run_id,
            attempt=record.attempt,
            node=node.name,
            addresses=addresses,
            run_dir=record.run_dir,
            attempt_dir=record.attempt_dir,
            node_dir=record.node_dir,
            start_dir=record.start_dir,
            python=record.python,
            version=record.version,
            ca_pem=keys.ca_pem,
            cert_pem=cert_pem,
            key_pem=key_pem,
            token=keys.token,
            python_version=build_python_version(),
            node_count=len(plan.allocation.nodes),
            orphan_grace_s=plan.orphan_grace_s,
            wants_namespace=plan.wants_namespace,
            batch_host=_build_batch_host(record, plan),
        )
        path = join_dir / f"{node.name}.pem"
        path.unlink(missing_ok=True)
        write_join(path, join)


def _build_batch_host(record: RunRecord, plan: Plan) -> BatchHost | None:
    if not record.job_id or not record.slurm_version:
        return None
    host = plan.allocation.nodes[0].name
    return BatchHost(host, ask_argv=("scontrol", "show", "node", "-o", host), cancel_argv=("scancel", record.job_id))
