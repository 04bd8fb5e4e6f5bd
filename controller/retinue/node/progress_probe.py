"""Ask one engine whether it gets on with its work: its metrics, read again and again. Decides nothing by itself.

What cannot be read is UNKNOWN until it has been silent for long; see `lifecycle.progress`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

from retinue.lifecycle.progress import Progress, Sample
from retinue.node.engines import ENGINES, UnknownMetrics, parse_samples
from retinue.node.probe import HEAD_LIMIT, LATE_S, Answer, Target, connect, parse_status_line
from retinue.terms.launch import ProbeSpec
from retinue.terms.replica import Verdict

PATH = "/metrics"
TEXT_BYTES = 8 * 1024 * 1024
"""vLLM's text is some hundred KiB; more than this is no metrics."""


class Silent(Exception):
    """Nothing was told; the message says why."""


class Misread(Exception):
    """Something answered that is not this engine's metrics: no reason to think that it is dead."""


class ProgressProbe:
    """One engine's progress over the life of an incarnation, as far as this agent has seen it."""

    def __init__(self, spec: ProbeSpec, token: str, read_lag_since: Callable[[float], float]) -> None:
        """`token`: what the engine takes for its API key; empty: none. `read_lag_since`: our own worst lag since."""
        self._engine = ENGINES[spec.progress]
        self._spec = spec
        self._token = token
        self._read_lag_since = read_lag_since
        self._loaders: dict[int, str] = {}
        self._loop = asyncio.get_running_loop()
        self._asked_s = self._loop.time()
        self._progress = Progress(spec.stall_s, self._asked_s)

    async def ask(self, target: Target, find_loaders: Callable[[], Awaitable[Mapping[int, str]]]) -> Answer:
        """Read once and judge.

        Shape:  `find_loaders` gives pid -> name of the engine's own processes: one that goes will not come back.
        """
        answer = await self._ask_metrics(target)
        loaders = await find_loaders() if self._engine.loaders else {}
        gone = [f"{pid} ({name})" for pid, name in self._loaders.items() if pid not in loaders]
        self._loaders |= loaders
        if gone:
            return Answer(Verdict.FAIL, f"its process {gone[0]} is gone")
        return answer

    async def _ask_metrics(self, target: Target) -> Answer:
        samples: dict[str, Sample] | None = None
        cause = ""
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                samples = parse_samples(await self._read(target), self._engine)
        except TimeoutError:
            cause = f"no answer of {PATH} within {self._spec.timeout_s:g} s"
        except OSError as error:
            cause = f"{PATH}: {os.strerror(error.errno) if error.errno else error}"
        except (Misread, UnknownMetrics) as error:
            self._progress = self._progress.restart(self._loop.time())
            return Answer(Verdict.UNKNOWN, f"{PATH} cannot be read: {error}")
        except Silent as error:
            cause = str(error)
        now_s = self._loop.time()
        if self._read_lag_since(self._asked_s) > LATE_S:
            # Whatever stopped us (a suspended node) may have stopped the engine as well.
            self._progress = self._progress.restart(now_s)
        self._asked_s = now_s
        self._progress, verdict, why = self._progress.observe(samples, now_s, cause)
        return Answer(verdict, why)

    async def _read(self, target: Target) -> str:
        """Read the text.

        Errors: Silent, Misread, OSError.
        """
        port = self._spec.port or target.port
        if port is None:
            raise Silent("the service has not told its port yet")
        reader, writer, address = await connect(target.addresses, port)
        try:
            owner = await target.check_owner(port, address)
            if owner.holder is None and not owner.is_unreadable:
                raise Silent(owner.cause)
            # HTTP/1.0: the body ends with the connection, whatever the server would like better.
            key = f"Authorization: Bearer {self._token}\r\n" if self._token else ""
            writer.write(f"GET {PATH} HTTP/1.0\r\nHost: localhost:{port}\r\n{key}Accept: text/plain\r\n\r\n".encode())
            await writer.drain()
            return await _read_text(reader)
        finally:
            writer.close()


async def _read_text(reader: asyncio.StreamReader) -> str:
    try:
        status, reason = parse_status_line(await reader.readline())
        head_bytes = 0
        while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
            head_bytes += len(line)
            if head_bytes > HEAD_LIMIT:
                raise Misread("its head does not end")
    except ValueError as error:
        raise Misread(f"not HTTP: {error}") from None
    if status >= 500:
        raise Silent(f"{PATH} answered {status} {reason}".rstrip())
    if status != 200:
        raise Misread(f"it answered {status} {reason}".rstrip())
    data = bytearray()
    while part := await reader.read(HEAD_LIMIT):
        data += part
        if len(data) > TEXT_BYTES:
            raise Misread(f"more than {TEXT_BYTES} bytes")
    return data.decode("utf-8", "replace")
