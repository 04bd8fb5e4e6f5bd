"""`SyncRetinue`: the same calls for programs without asyncio.

One event loop in one background thread, shared by all threads that call; started
when it is first needed, and again in a forked child.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any, TypeVar, Unpack

from retinue.client.endpoints import Endpoint
from retinue.client.judge_records import Judged
from retinue.client.judging import JudgeOptions
from retinue.client.question import Check
from retinue.client.retrieval_records import Retrieved
from retinue.client.rollouts import GATE_S, Retinue
from retinue.client.sandbox_create import SandboxOptions
from retinue.client.sandbox_sync import SyncSandbox
from retinue.client.site import CHECKS, HOLD_OUTSIDE_S, SANDBOX
from retinue.errors import PermanentError, UsageError
from retinue.terms.outage import Outage
from retinue.terms.outcome import Outcome

T = TypeVar("T")
JOIN_S = 5.0


class SyncRetinue:
    """The services of a run, for programs without asyncio; usable from many threads at once."""

    def __init__(
        self,
        base_urls: str | Mapping[str, str],
        *,
        token: str = "",
        caller: str | None = None,
        hold_s: float = HOLD_OUTSIDE_S,
    ) -> None:
        """Name the servers, as `Retinue` does."""
        self._start(Retinue(base_urls, token=token, caller=caller, hold_s=hold_s))

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, caller: str | None = None) -> "SyncRetinue":
        """Use the run this process was started in, as `Retinue.from_env` does."""
        client = cls.__new__(cls)
        client._start(Retinue.from_env(env, caller=caller))
        return client

    def _start(self, retinue: Retinue) -> None:
        self._retinue = retinue
        self._loops: dict[int, _LoopThread] = {}
        self._is_closed = False

    def __enter__(self) -> "SyncRetinue":
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End calls that run, close the connections and end the thread; calls after it are refused."""
        self._is_closed = True
        thread = self._loops.pop(os.getpid(), None)
        if thread is not None:
            thread.stop(self._retinue)

    def check(
        self,
        verifier: str,
        *,
        response: str,
        gold: Any = None,
        args: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        rollout_id: str | None = None,
        service: str = CHECKS,
        deadline_s: float | None = None,
    ) -> Outcome:
        """Check one response, as `Retinue.check` does."""
        self._check_open()
        return self._run(
            self._retinue.check(
                verifier,
                response=response,
                gold=gold,
                args=args,
                timeout_s=timeout_s,
                rollout_id=rollout_id,
                service=service,
                deadline_s=deadline_s,
            )
        )

    def check_many(
        self, checks: Iterable[Check | Mapping[str, Any]], *, service: str = CHECKS, deadline_s: float | None = None
    ) -> Iterator[tuple[int, Outcome]]:
        """Check many, as `Retinue.check_many` does; leaving the loop early ends what is not finished."""
        self._check_open()
        return self._drain(self._retinue.check_many(checks, service=service, deadline_s=deadline_s))

    def retrieve(
        self,
        service: str,
        queries: str | Sequence[str],
        top_k: int | None = None,
        *,
        method: str | None = None,
        deadline_s: float | None = None,
    ) -> Retrieved:
        """Search a corpus, as `Retinue.retrieve` does."""
        self._check_open()
        return self._run(self._retinue.retrieve(service, queries, top_k, method=method, deadline_s=deadline_s))

    def judge(
        self,
        service: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        schema: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        **options: Unpack[JudgeOptions],
    ) -> Judged:
        """Ask a judge, as `Retinue.judge` does."""
        self._check_open()
        return self._run(self._retinue.judge(service, messages, schema=schema, deadline_s=deadline_s, **options))

    def sandbox(
        self,
        image: str | os.PathLike[str],
        *,
        service: str = SANDBOX,
        deadline_s: float | None = None,
        **options: Unpack[SandboxOptions],
    ) -> SyncSandbox:
        """Prepare a sandbox, as `Retinue.sandbox` does: `with retinue.sandbox(image) as box`."""
        self._check_open()
        prepared = self._retinue.sandbox(image, service=service, deadline_s=deadline_s, **options)
        return SyncSandbox(self._run, prepared)

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the run's services as they are now, as `Retinue.endpoints` does."""
        self._check_open()
        return self._retinue.endpoints()

    def outages(self, since_utc: float = 0.0) -> list[Outage]:
        """Read the run's ledger, as `Retinue.outages` does."""
        self._check_open()
        return self._run(self._retinue.outages(since_utc))

    def gate(self, services: Iterable[str] = (), timeout_s: float = GATE_S) -> None:
        """Wait until services are ready, as `Retinue.gate` does."""
        self._check_open()
        self._run(self._retinue.gate(services, timeout_s))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        future = self._find_thread().submit(call)
        try:
            return _wait(future)
        finally:
            # Ctrl-C in the waiting thread ends the call too.
            future.cancel()

    def _drain(self, results: AsyncIterator[tuple[int, Outcome]]) -> Iterator[tuple[int, Outcome]]:
        out: SimpleQueue[tuple[int, Outcome] | None] = SimpleQueue()

        async def pump() -> None:
            try:
                async for found in results:
                    out.put(found)
            finally:
                await results.aclose()  # type: ignore[attr-defined]

        pid = os.getpid()
        future = self._find_thread().submit(pump())
        future.add_done_callback(lambda _: out.put(None))
        try:
            while (found := out.get()) is not None:
                yield found
                if os.getpid() != pid:
                    raise PermanentError("cannot go on with a batch of the parent process: ask again in this one")
            _wait(future)
        finally:
            if os.getpid() == pid:
                future.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("cannot call: the client was closed; make another, or call inside its `with`")

    def _find_thread(self) -> "_LoopThread":
        # setdefault is atomic: two threads of a child that come here first get the same one.
        return self._loops.setdefault(os.getpid(), _LoopThread())


def _wait(future: Future[T]) -> T:
    try:
        return future.result()
    except CancelledError:
        raise PermanentError("cannot finish the call: the client was closed") from None


class _LoopThread:
    """An event loop in a thread, started by the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def submit(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        with self._lock:
            if self._is_stopped:
                call.close()
                raise PermanentError("cannot call: the client was closed meanwhile")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: a program that does not close its client ends all the same.
                self._thread = threading.Thread(target=self._loop.run_forever, name="retinue-client", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(call, self._loop)

    def stop(self, retinue: Retinue) -> None:
        """Cancel what runs, close this loop's connections, end the thread."""
        with self._lock:
            self._is_stopped = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end_calls(retinue), loop).result(JOIN_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(JOIN_S)
        loop.close()


async def _end_calls(retinue: Retinue) -> None:
    calls = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await retinue.close()
    await asyncio.get_running_loop().shutdown_asyncgens()
