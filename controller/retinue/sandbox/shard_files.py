"""The files of a sandbox, as callers ask for them: a request's words to `files`, and its refusals to answers."""

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from retinue.sandbox import files
from retinue.sandbox.file_errors import FileFailed, FileRefused, Reason
from retinue.sandbox.file_records import READ_MAX_BYTES, TransferLimits
from retinue.sandbox.requests import Fault, parse_number, refuse
from retinue.sandbox.shard_box import LiveBox
from retinue.sandbox.shard_link import Exchange
from retinue.sandbox.shard_wire import Answer, Ask, Body
from retinue.terms.record import to_json

PIECE_BYTES = 4 * 2**20
"""Of a file that is written: one call into the sandbox's disk each."""
STATUSES = {
    Reason.NOT_FOUND: (404, "sandbox_no_file"),
    Reason.BAD_PATH: (400, "sandbox_bad_request"),
    Reason.BAD_ARCHIVE: (400, "sandbox_bad_request"),
    Reason.TOO_LARGE: (413, "sandbox_too_large"),
    Reason.TOO_MANY: (413, "sandbox_too_large"),
    Reason.LATE: (504, "sandbox_timed_out"),
}
"""What a refusal is answered with; every other one is 409."""
REFUSED = (409, "sandbox_file_refused")

Act = Callable[[Exchange, int, str, Ask], Awaitable[Answer | None]]


async def answer_files(exchange: Exchange, live: LiveBox, ask: Ask) -> Answer | None:
    """Do what `do` says; None: the answer has been streamed. Errors: Fault, LinkLost."""
    act = _ACTS.get(ask.words.get("do", ""))
    path = ask.words.get("path", "")
    if act is None:
        raise Fault(405, "sandbox_wrong_method", f"cannot {ask.words.get('do', '')[:40]}: there is no such thing to do")
    async with _opened_root(live) as root_fd:
        return await act(exchange, root_fd, path, ask)


async def make_workdir(live: LiveBox, path: str) -> None:
    """Make the directory that commands start in, unless it is there. Errors: Fault, LinkLost."""
    async with _opened_root(live) as root_fd:
        await files.make_directory(root_fd, path, parents=True)


async def write_script(live: LiveBox, script: str) -> str:
    """Write a script that is too long for a word; gives its path. Errors: Fault, LinkLost."""
    path = f"/.retinue-script-{secrets.token_hex(6)}"
    async with _opened_root(live) as root_fd:
        await files.write(root_fd, path, script.encode("utf-8", "replace"), mode=0o700)
    return path


async def remove_script(live: LiveBox, path: str) -> None:
    """Take it away again; what became of it meanwhile is the sandbox's own affair. Errors: LinkLost."""
    try:
        async with _opened_root(live) as root_fd:
            await files.remove(root_fd, path)
    except Fault:
        pass


@asynccontextmanager
async def _opened_root(live: LiveBox) -> AsyncIterator[int]:
    root_fd = await live.box.open_root()
    try:
        yield root_fd
    except FileRefused as refused:
        status, kind = STATUSES.get(refused.reason, REFUSED)
        raise Fault(status, kind, str(refused), refused.reason.value) from None
    except FileFailed as failed:
        raise Fault(503, "infra_failed", str(failed), str(failed), retry_after_s=1) from None
    finally:
        os.close(root_fd)


async def _read(_exchange: Exchange, root_fd: int, path: str, ask: Ask) -> Answer:
    offset = int(parse_number(ask.words, "offset", 0, 2**62))
    limit = int(parse_number(ask.words, "limit", READ_MAX_BYTES, READ_MAX_BYTES))
    data = await files.read(root_fd, path, offset, limit)
    return Answer(200, data, Body.OCTETS, {"X-Offset": str(offset), "X-Next-Offset": str(offset + len(data))})


async def _write(exchange: Exchange, root_fd: int, path: str, ask: Ask) -> Answer:
    """Write what comes, in pieces: a file may be larger than what is held at once."""
    mode = _parse_mode(ask.words.get("mode", ""))
    appends, is_first = _is_yes(ask, "append"), True
    while True:
        piece, is_last = await _gather(exchange)
        if piece or is_first:
            entry = await files.write(root_fd, path, piece, mode, appends or not is_first, parents=is_first)
        is_first = False
        if is_last:
            return _answer(entry)


async def _remove(_exchange: Exchange, root_fd: int, path: str, ask: Ask) -> Answer:
    return _answer({"removed": await files.remove(root_fd, path, _is_yes(ask, "recursive"))})


async def _stat(_exchange: Exchange, root_fd: int, path: str, ask: Ask) -> Answer:
    return _answer(await files.stat(root_fd, path, _is_yes(ask, "follow")))


async def _list(_exchange: Exchange, root_fd: int, path: str, _ask: Ask) -> Answer:
    return _answer({"entries": await files.list(root_fd, path)})


async def _make_directory(_exchange: Exchange, root_fd: int, path: str, ask: Ask) -> Answer:
    await files.make_directory(root_fd, path, _parse_mode(ask.words.get("mode", "")) or 0o755, parents=True)
    return _answer({"made": True})


async def _upload(exchange: Exchange, root_fd: int, path: str, _ask: Ask) -> Answer:
    return _answer(await files.upload(root_fd, path, exchange.receive))


async def _download(exchange: Exchange, root_fd: int, path: str, ask: Ask) -> None:
    """Stream a tar file; one that fails on the way is broken off, so that nobody takes it for whole."""
    has_begun = False

    async def send(data: bytes) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            exchange.reply(Answer(200, kind=Body.TAR_STREAM))
        await exchange.send(data)

    limits = TransferLimits(bytes=int(parse_number(ask.words, "limit", TransferLimits().bytes, 2**62)))
    try:
        await files.download(root_fd, path, send, limits)
    except (FileRefused, FileFailed):
        if not has_begun:
            raise
        exchange.break_off()
        return
    exchange.end()


_ACTS: dict[str, Act] = {
    "get file": _read,
    "put file": _write,
    "delete file": _remove,
    "get stat": _stat,
    "get files": _list,
    "post directory": _make_directory,
    "put archive": _upload,
    "get archive": _download,
}


async def _gather(exchange: Exchange) -> tuple[bytes, bool]:
    """Take a piece of the body, and whether it was the last."""
    parts = bytearray()
    while len(parts) < PIECE_BYTES:
        chunk = await exchange.receive()
        if not chunk:
            return bytes(parts), True
        parts += chunk
    return bytes(parts), False


def _parse_mode(text: str) -> int | None:
    if not text:
        return None
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise refuse(f"cannot use mode {text[:40]!r}: it is an octal number like 0644")
    return mode


def _is_yes(ask: Ask, name: str) -> bool:
    return ask.words.get(name, "") in ("1", "true", "yes")


def _answer(value: object) -> Answer:
    return Answer(200, to_json(value) + b"\n")
