"""No relaunch onto a GPU whose memory somebody still has: an engine would load for minutes and then die of it.

Knows what the outer process was told (`gpu_reader`); what nobody can tell holds nothing up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from retinue.errors import TransientError
from retinue.node.keeper_link import Keeper
from retinue.node.orders import AskGpus

ANSWER_S = 12.0
"""Longer than the reader's own limit."""
WAIT_S = 120.0
"""How long a launch waits for memory to come back; then it is refused, by name."""
POLL_S = 2.0
FREE_MIB = 1024
"""A GPU that nobody uses has some hundred MiB in use all the same: contexts, drivers."""
FREE_SHARE = 20
"""One of so many parts of its memory may be in use, where that is more."""


class Gpu(NamedTuple):
    """One GPU of the node."""

    number: str
    """nvidia-smi's index."""
    uuid: str
    used_mib: int
    total_mib: int
    holders: tuple[str, ...] = ()
    """`pid 4242 (python3), 61000 MiB`."""

    @property
    def is_free(self) -> bool:
        return self.used_mib <= max(FREE_MIB, self.total_mib // FREE_SHARE)


ReadGpus = Callable[[], Awaitable[Sequence[Gpu]]]
"""All GPUs of the node; empty when nobody can tell."""


class GpuQuestions:
    """Asks the outer process, by way of the keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._answer: asyncio.Future[str] | None = None

    def take(self, text: str) -> None:
        """Take the answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(text)

    async def read(self) -> Sequence[Gpu]:
        """Ask once; those who ask meanwhile get the same answer."""
        if self._answer is None or self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
            self._keeper.send(AskGpus())
        try:
            async with asyncio.timeout(ANSWER_S):
                return parse_gpus(await asyncio.shield(self._answer))
        except TimeoutError:
            return ()


def parse_gpus(text: str) -> list[Gpu]:
    """Parse what nvidia-smi says to both of the reader's queries, in any order; other lines are no GPUs."""
    rows = [[cell.strip() for cell in line.split(",", 3)] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 4]
    holders: dict[str, list[str]] = {}
    for uuid, pid, used, name in rows:
        if pid.isdigit() and not uuid.isdigit():
            holders.setdefault(uuid, []).append(f"pid {pid} ({name}), {used} MiB")
    return [
        Gpu(number, uuid, int(used), int(total), tuple(holders.get(uuid, ())))
        for number, uuid, used, total in rows
        if number.isdigit() and used.isdigit() and total.isdigit()
    ]


def find_held(gpus: Sequence[Gpu], devices: str) -> str:
    """Say which of these devices somebody has memory of; empty: none.

    Shape:  `devices` as in CUDA_VISIBLE_DEVICES: indices, or UUIDs (a prefix is enough, as for CUDA).
    """
    names = [name for name in devices.split(",") if name]
    mine = [gpu for gpu in gpus if any(gpu.number == name or gpu.uuid.startswith(name) for name in names)]
    return "; ".join(_describe(gpu) for gpu in mine if not gpu.is_free)


def _describe(gpu: Gpu) -> str:
    who = ", ".join(gpu.holders) or "nobody that the driver names"
    return f"{gpu.used_mib} of {gpu.total_mib} MiB of GPU {gpu.number} are held by {who}"


async def wait_until_free(read: ReadGpus, devices: str, note: Callable[[str], None]) -> None:
    """Wait until nobody has memory of these devices; `note` hears what is waited for, and "" at the end.

    Errors: TransientError names the holder.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    try:
        while held := find_held(await read(), devices):
            note(f"waits for GPU memory: {held}")
            if loop.time() >= until_s:
                raise TransientError(f"cannot start: {held}, {WAIT_S:g} s after the last launch ended")
            await asyncio.sleep(POLL_S)
    finally:
        note("")
