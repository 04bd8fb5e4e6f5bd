"""The client side: how a replica is addressed and connected to. No proxy, no cookies, no name service."""

import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from retinue.channel.messages import Backend

CONNECT_TIMEOUT_S = 2.0
"""Reading has no deadline: a judge may think for an hour."""
IDLE_S = 4.0
"""Idle connections to backends are closed before uvicorn's default (5 s) closes them under a request."""
READ_BYTES = 64 * 1024
HEADER_BYTES = 32 * 1024
"""One header field or the request line, both directions."""
LOOPBACK = ("127.0.0.1", "::1")


class LoopbackResolver(AbstractResolver):
    """`localhost` is 127.0.0.1, then ::1: a server may listen on either. Nothing else has a name here."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host != "localhost":
            raise OSError(None, f"replicas are addressed by number, not as {host!r}")
        families = ((LOOPBACK[0], socket.AF_INET), (LOOPBACK[1], socket.AF_INET6))
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for address, kind in families
        ]

    async def close(self) -> None:
        """Nothing is held."""


def find_host(backend: Backend) -> str:
    """Name the host to connect to; on loopback both address families are tried."""
    return "localhost" if backend.host in LOOPBACK else backend.host


def build_authority(backend: Backend) -> str:
    """Say what the replica is called in Host, and in redirects to itself."""
    return f"{backend.host}:{backend.port}"


def build_url(backend: Backend, target: str) -> URL:
    """Build the backend's URL; `target` goes through byte for byte, dots and escapes as they came."""
    return URL.build(scheme="http", host=find_host(backend), port=backend.port, path=target, encoded=True)


def open_direct() -> aiohttp.ClientSession:
    """Open the way to replicas of the own node."""
    # No cache of names: it would make requests wait for each other, and lose their order.
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=IDLE_S, resolver=LoopbackResolver(), use_dns_cache=False
    )
    return open_session(connector, CONNECT_TIMEOUT_S)


def open_session(connector: aiohttp.TCPConnector, connect_s: float) -> aiohttp.ClientSession:
    """Open a client side: no limits but the connect timeout."""
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BYTES,
        max_line_size=HEADER_BYTES,
        max_field_size=HEADER_BYTES,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )
    # aiohttp sends idempotent requests again by itself; whether to is decided by the proxy, and counted.
    session._retry_connection = False
    return session
