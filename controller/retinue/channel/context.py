"""TLS settings of the control channel, for both ends. Standard library only: keeper and agent import it.

A peer is whoever holds a key that this run's authority signed; hostnames, system
certificates and proxies play no part. Never trusts a certificate of another run.
"""

import asyncio.sslproto
import os
import socket
import ssl

from retinue.terms.record import Record

CONNECT_TIMEOUT_S = 3.0
HANDSHAKE_TIMEOUT_S = 10.0
SILENT_PEER_MS = 10_000
TLS_BUFFER_BYTES = 16 * 1024
"""The largest TLS record; asyncio's default allocates 256 KiB per connection."""


class Peer(Record, frozen=True):
    """Who a certificate says it is."""

    run_id: str
    role: str
    """`controller` | `agent` | `operator`."""
    name: str


def build_server_name(run_id: str) -> str:
    """Name the controller of a run; the only name a client accepts."""
    return f"retinue-{run_id}"


def build_identity(run_id: str, role: str, name: str) -> str:
    """Say role and name as the URI that a certificate carries."""
    return f"urn:retinue:{run_id}:{role}:{name}"


def parse_peer(certificate: object) -> Peer | None:
    """Read role and name from what `getpeercert()` returned; None when it is no certificate of ours."""
    if not isinstance(certificate, dict):
        return None
    for kind, value in certificate.get("subjectAltName", ()):
        parts = value.split(":")
        if kind == "URI" and len(parts) == 5 and parts[:2] == ["urn", "retinue"]:
            return Peer(parts[2], parts[3], parts[4])
    return None


def build_server_context(ca_pem: str, cert_pem: str, key_pem: str) -> ssl.SSLContext:
    """Require a certificate of this run from every client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # Tickets are for resumption, which a reconnect every few hours does not need.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return _load(context, ca_pem, cert_pem, key_pem)


def build_client_context(ca_pem: str, cert_pem: str, key_pem: str) -> ssl.SSLContext:
    """Accept only the controller of this run; the caller passes its fixed name as `server_hostname`."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca_pem, cert_pem, key_pem)


def build_hop_contexts(run_id: str, ca_pem: str, cert_pem: str, key_pem: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Build what a gateway answers other gateways with, and what it calls them with.

    Shape:  (server, client). Both ends show the certificate of their node's agent. A client names the node that it
            means as `server_hostname`, and accepts that node's certificate wherever it is found.
    """
    server = build_server_context(ca_pem, cert_pem, key_pem)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # Our names are no host names; `_build_node_check` looks at them.
    client = _load(client, ca_pem, cert_pem, key_pem)
    server.sslobject_class = client.sslobject_class = _build_node_check(run_id)
    return server, client


def _build_node_check(run_id: str) -> type[ssl.SSLObject]:
    """Build the TLS object that ends a handshake with anything but a node of this run."""

    class NodeOnly(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()  # Raises until it is complete.
            peer = parse_peer(self.getpeercert())
            wanted = "" if self.server_side else self.server_hostname
            if peer is None or (peer.run_id, peer.role) != (run_id, "agent") or wanted not in ("", peer.name):
                met = f"{peer.role} {peer.name!r} of run {peer.run_id!r}" if peer else "no certificate of ours"
                raise ssl.SSLCertVerificationError(f"expected {f'node {wanted!r}' if wanted else 'a node'}, met {met}")

    return NodeOnly


def _load(context: ssl.SSLContext, ca_pem: str, cert_pem: str, key_pem: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca_pem)
    # OpenSSL's Python face reads keys from a path only; a memfd is a path that no disk ever sees.
    descriptor = os.memfd_create("retinue-key")
    try:
        os.write(descriptor, (cert_pem + key_pem).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def limit_tls_buffers() -> None:
    """Make asyncio's TLS connections of this process cost 16 KiB of read buffer instead of 256."""
    asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


def tune_socket(sock: socket.socket) -> None:
    """Send small frames at once, and let the kernel give up a peer that acknowledges nothing for 10 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # An idle side sends no bytes that could stay unacknowledged; keepalive probes take their place.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_PEER_MS)


def is_certificate_refusal(error: OSError) -> bool:
    """Say whether the other end is not who it should be, or says that of us; asking again will not help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "BAD_CERT" in reason
