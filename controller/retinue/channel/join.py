"""What a node needs to join a run: one 0600 file, also copied into the node directory.

Standard library and msgspec only: keeper and agent read it.
"""

from retinue.terms.record import Record


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
    orphan_grace_s: float = 60.0
    wants_namespace: bool = True

    @property
    def server_name(self) -> str:
        """The fixed name in the controller's certificate; never a hostname."""
        return f"retinue-{self.run_id}"
