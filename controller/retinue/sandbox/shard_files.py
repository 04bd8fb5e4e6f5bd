"""Files of a sandbox, as callers ask for them."""

from retinue.sandbox.requests import Fault
from retinue.sandbox.shard_box import LiveBox
from retinue.sandbox.shard_link import Exchange
from retinue.sandbox.shard_wire import Answer, Ask


async def answer_files(exchange: Exchange, live: LiveBox, ask: Ask, body: bytes) -> Answer | None:
    raise Fault(501, "x", "not there yet")


async def make_workdir(live: LiveBox, path: str) -> None:
    raise Fault(501, "x", "not there yet")
