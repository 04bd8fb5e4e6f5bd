"""What a node needs to join a run: one 0600 file, also copied into the node directory.

Standard library and msgspec only: keeper and agent read it.
"""

import json
import re
from pathlib import Path

from retinue.channel.secret_file import create_secret, read_secret
from retinue.errors import PermanentError
from retinue.terms.record import DecodeError, Record, from_json, to_plain

HEADER = "# retinue-join: "

_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n", re.DOTALL)


class BatchHost(Record, frozen=True):
    """How a node without a controller learns whether the host of the batch script is gone, and ends the job then."""

    host: str
    """As Slurm calls it; a node of the run."""
    ask_argv: tuple[str, ...]
    cancel_argv: tuple[str, ...]


class Join(Record, frozen=True):
    """One node's way into the run."""

    run_id: str
    attempt: int
    node: str
    addresses: tuple[tuple[str, int], ...]
    """(host, port) of the controller, tried in order."""
    run_dir: str
    attempt_dir: str
    node_dir: str
    start_dir: str
    """cwd of services."""
    python: str
    version: str
    ca_pem: str
    cert_pem: str
    key_pem: str
    token: str
    """The run's token: callers that are not the run's owner show it to a gateway."""
    python_version: str = ""
    """`3.11`; empty: any will do."""
    node_count: int = 1
    """Nodes of the run; more than one, and its gateways call each other."""
    orphan_grace_s: float = 60.0
    wants_namespace: bool = True
    batch_host: BatchHost | None = None
    """None outside Slurm."""

    @property
    def server_name(self) -> str:
        """The fixed name in the controller's certificate; never a hostname."""
        return f"retinue-{self.run_id}"


def build_join(join: Join) -> bytes:
    """Say a join as the text of its file.

    Shape: one comment line with every field but the keys as JSON, then PEM blocks: the node's
           certificate, its key, the run's authority. OpenSSL's tools read the file as it is.
    """
    plain = to_plain(join)
    blocks = [plain.pop(field) for field in ("cert_pem", "key_pem", "ca_pem")]
    return (HEADER + json.dumps(plain) + "\n" + "".join(blocks)).encode()


def parse_join(content: bytes) -> Join:
    """Read the text of a join file.

    Errors: PermanentError says what is missing.
    """
    text = content.decode("utf-8", "replace")
    first, _, rest = text.partition("\n")
    blocks = [match.group(0) for match in _BLOCK.finditer(rest)]
    if not first.startswith(HEADER) or len(blocks) != 3:
        raise PermanentError(f"cannot read join file: no {HEADER.strip()!r} line and 3 PEM blocks")
    try:
        plain = json.loads(first.removeprefix(HEADER))
        plain |= {"cert_pem": blocks[0], "key_pem": blocks[1], "ca_pem": blocks[2]}
        return from_json(json.dumps(plain), Join)
    except (DecodeError, ValueError, TypeError) as error:
        raise PermanentError(f"cannot read join file: {error}") from None


def write_join(path: Path, join: Join) -> None:
    """Create the file a node joins with: 0600, whole or absent.

    Errors: PermanentError when one is there already (an older attempt's is removed first by whoever
            holds the run directory's lock); TransientError on a full disk.
    """
    create_secret(path, build_join(join))


def read_join(path: Path) -> Join:
    """Read a join file after checking that it is ours alone.

    Errors: PermanentError when it is missing, foreign, readable by others, or not a join.
    """
    return parse_join(read_secret(path))
