"""What an agent and its node's gateway say to each other, and how it is framed.

One unix stream socket, 4-byte big-endian length, one JSON record per frame. The
gateway listens and believes the newest connection only. Never imports aiohttp:
the agent shares this module.
"""

import asyncio
import struct
from typing import TypeVar

from retinue.channel.messages import GatewayFacts, Membership, Message
from retinue.errors import TransientError
from retinue.terms.record import DecodeError, Record, from_json, to_json

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""A membership of 10,000 backends is about 1 MiB; more than this is a stranger."""

T = TypeVar("T")
_LENGTH = struct.Struct(">I")


class Attach(Message, frozen=True, tag=True):
    """First frame of an agent, on every connection."""

    node: str
    """Whose gateway this is: `is_per_node` routes prefer its backends."""


class DropReplica(Message, frozen=True, tag=True):
    """A local replica exited or lost readiness: send it nothing more."""

    replica: str
    incarnation: int
    cause: str = ""


class ControllerIs(Message, frozen=True, tag=True):
    """Whether the agent is connected to the controller: what other nodes ask when they are not."""

    is_there: bool


WHETHER_CONTROLLER = "/-/controller"
"""Asked of a gateway's hop port by agents of other nodes; answered with one of these."""
HAS_CONTROLLER, HAS_NONE = 204, 410

ToGateway = Attach | Membership | DropReplica | ControllerIs
ToAgent = GatewayFacts


def build_frame(record: Record) -> bytes:
    """Encode one record as one frame."""
    body = to_json(record)
    return _LENGTH.pack(len(body)) + body


async def read_to_gateway(reader: asyncio.StreamReader) -> ToGateway:
    """Read one frame of an agent.

    Errors: TransientError when the peer is gone or is not one of ours; close and wait for the next.
    """
    return _decode(await _read_frame(reader), ToGateway)  # type: ignore[arg-type]


async def read_to_agent(reader: asyncio.StreamReader) -> ToAgent:
    """Read one frame of a gateway.

    Errors: TransientError as for `read_to_gateway`.
    """
    return _decode(await _read_frame(reader), ToAgent)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > FRAME_BYTES_MAX:
            raise TransientError(f"cannot read frame: {size} bytes, at most {FRAME_BYTES_MAX} are allowed")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise TransientError(f"cannot read frame: {error}") from None


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return from_json(body, kind)
    except DecodeError as error:
        raise TransientError(f"cannot read frame: {error}") from None
