"""`Retinue`: what an environment's rollouts call.

Checks, sandboxes, endpoints and the gate. After arguments are right no check raises
for an outage, every wait has a deadline, and no row is lost.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from retinue import __version__
from retinue.client.asking import Line, build_default_deadline, check_one
from retinue.client.batch import Batch
from retinue.client.endpoints import Endpoint, Endpoints, find_unready, read_endpoints, read_outages
from retinue.client.http import parse_target
from retinue.client.judge_records import Judged
from retinue.client.judging import JudgeOptions, check_judge, judge
from retinue.client.pools import Pools
from retinue.client.question import Check, Question, check_question, check_questions, check_seconds
from retinue.client.retrieval_records import Retrieved
from retinue.client.retrieving import check_queries, retrieve
from retinue.client.sandbox import Sandbox
from retinue.client.sandbox_create import SandboxOptions, build_create
from retinue.client.site import CHECKS, HOLD_OUTSIDE_S, SANDBOX, Site, find_url, read_site
from retinue.errors import NotReadyError, TransientError, UsageError
from retinue.terms.outage import Outage
from retinue.terms.outcome import Outcome
from retinue.terms.record import replace
from retinue.terms.run import OUTAGES, VERDICT

GATE_S = 600.0
GATE_POLL_S = 0.3


class Retinue:
    """The services of a run, for asyncio programs.

    One may be shared by all tasks, by several event loops and threads, and by forked children: each loop of each
    process has its own connections.
    """

    def __init__(
        self,
        base_urls: str | Mapping[str, str],
        *,
        token: str = "",
        caller: str | None = None,
        hold_s: float = HOLD_OUTSIDE_S,
    ) -> None:
        """Name the servers: one URL for `checks`, or service -> URL; `http://HOST:PORT/PREFIX` or `unix:/PATH`.

        Shape:  `caller` is who requests are counted for (fairness); None: `hostname:pid`.
        Units:  hold_s seconds that a server may be away before a call without a deadline gives up.
        Errors: UsageError for an address that cannot be used.
        """
        urls = {CHECKS: base_urls} if isinstance(base_urls, str) else dict(base_urls)
        if not urls:
            raise UsageError("cannot call anything: no address was given")
        for url in urls.values():
            parse_target(url)
        check_seconds(hold_s, "hold_s")
        self._site = Site(urls=urls, token=token, node=socket.gethostname(), hold_s=hold_s)
        self._caller = caller
        self._pools = Pools()
        self._models: dict[str, str] = {}

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, caller: str | None = None) -> "Retinue":
        """Use the run this process was started in.

        Errors: UsageError outside a run, with what to do.
        """
        return cls._at(read_site(os.environ if env is None else env, socket.gethostname()), caller)

    @classmethod
    def _at(cls, site: Site, caller: str | None) -> "Retinue":
        client = cls.__new__(cls)
        client._site, client._caller, client._pools, client._models = site, caller, Pools(), {}
        return client

    async def __aenter__(self) -> "Retinue":
        self._pools.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close this event loop's idle connections; what runs goes on, and new calls in this loop are refused."""
        await self._pools.close()

    async def check(
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
        """Check one response.

        Units:  timeout_s: the check's own limit, None: the verifier's; deadline_s: this call's, None: three times
                the check's limit and the run's hold.
        Errors: TypeError, ValueError, UsageError for wrong arguments or a closed client; nothing for an outage.
        """
        question = check_question(Check(verifier, response, gold, {} if args is None else args, timeout_s, rollout_id))
        check_seconds(deadline_s, "deadline_s")
        line = self._open_line(service)
        return await check_one(line, question, deadline_s or build_default_deadline(line, [question.check]))

    def check_many(
        self, checks: Iterable[Check | Mapping[str, Any]], *, service: str = CHECKS, deadline_s: float | None = None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        """Check many; yields (index, outcome) as each finishes, every index once.

        Units:  deadline_s of the whole call; None: it goes on while outcomes come, and ends when none came for three
                times the longest check's limit and the run's hold.
        Errors: as `check`, before anything is sent, with the row's number.
        """
        self._pools.check_open()
        check_seconds(deadline_s, "deadline_s")
        questions = check_questions(checks)
        self._find_url(service)
        return self._stream(questions, service, deadline_s)

    async def retrieve(
        self,
        service: str,
        queries: str | Sequence[str],
        top_k: int | None = None,
        *,
        method: str | None = None,
        deadline_s: float | None = None,
    ) -> Retrieved:
        """Search a corpus, one query or many; all are answered, or none.

        Shape:  `service` is the retrieval service's name; `method` is "bm25", "dense", "hybrid", None: the service's.
        Units:  top_k passages per query, None: the service's; deadline_s of the whole call, None: a minute and the
                run's hold.
        Errors: TypeError, ValueError, UsageError for wrong arguments or a closed client; nothing for an outage.
        """
        texts = check_queries(queries, top_k, method)
        check_seconds(deadline_s, "deadline_s")
        return await retrieve(self._open_line(service), texts, top_k, method, deadline_s)

    async def judge(
        self,
        service: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        schema: Mapping[str, Any] | None = None,
        deadline_s: float | None = None,
        **options: Unpack[JudgeOptions],
    ) -> Judged:
        """Ask a judge, or any model behind the OpenAI API, for one answer.

        Shape:  with `schema` (JSON Schema) the answer is the value that fits it, else the text; `messages` as in the
                OpenAI API, or one text.
        Units:  deadline_s of the whole call, None: two minutes and the run's hold.
        Errors: TypeError, ValueError, UsageError for wrong arguments or a closed client; nothing for an outage, and
                nothing for an answer that cannot be read: both are `infra_failed`.
        """
        question = check_judge(messages, schema, options)
        check_seconds(deadline_s, "deadline_s")
        return await judge(self._open_line(service), question, self._models, deadline_s)

    def sandbox(
        self,
        image: str | os.PathLike[str],
        *,
        service: str = SANDBOX,
        deadline_s: float | None = None,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """Prepare a sandbox: `async with retinue.sandbox(image) as box` makes it, and destroys it on the way out.

        Shape:  `image` is a name in the store, or the path of a SIF or squashfs file or of a directory.
        Units:  deadline_s of the whole create; None: a minute more than `queue_s`, and the run's hold.
        Errors: TypeError, ValueError, UsageError for wrong arguments or a closed client; those of an outage, and of
                what the service refuses, when it is entered.
        """
        self._pools.check_open()
        check_seconds(deadline_s, "deadline_s")
        create = build_create(os.fspath(image), options)
        self._find_url(service)
        return Sandbox(lambda: self._open_line(service), create, deadline_s)

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the run's services as they are now.

        Errors: UsageError outside a run; TransientError when the file cannot be read.
        """
        self._pools.check_open()
        return dict(self._read_endpoints().services)

    async def outages(self, since_utc: float = 0.0) -> list[Outage]:
        """Read the run's ledger: what of ours was away, from when to when, and why.

        Shape:  what lasted at `since_utc` (seconds since 1970) or began later, in the order in which it began;
                an entry without `to_utc` lasts. `outage.touches(from_utc, to_utc)` tells whether a row was scored
                meanwhile.
        Errors: UsageError outside a run; TransientError when the file cannot be read.
        """
        self._pools.check_open()
        if not self._site.endpoints_path:
            raise UsageError("cannot read outages outside a run: RETINUE_ENDPOINTS is not set")
        found = await asyncio.to_thread(read_outages, Path(self._site.endpoints_path).with_name(OUTAGES))
        return [outage for outage in found if outage.touches(since_utc)]

    async def gate(self, services: Iterable[str] = (), timeout_s: float = GATE_S) -> None:
        """Wait until each of these services (all when none is named) has a replica that is ready.

        Errors: NotReadyError names what is not ready, or that the run is over; UsageError for a service that is not.
        """
        self._pools.check_open()
        check_seconds(timeout_s, "timeout_s")
        names = (services,) if isinstance(services, str) else tuple(services)
        unready = ["an answer of the file system"]
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    unready = await self._find_unready(names)
                    if not unready:
                        return
                    await asyncio.sleep(GATE_POLL_S)
        except TimeoutError:
            raise NotReadyError(f"not ready after {timeout_s:g} s: {', '.join(unready)}") from None

    async def _find_unready(self, names: tuple[str, ...]) -> list[str]:
        # A shared file system may hang, and the loop must not with it.
        try:
            found = await asyncio.to_thread(self._read_endpoints)
        except TransientError as error:
            return [str(error)]
        unknown = [name for name in names if name not in found.services]
        if unknown:
            raise UsageError(f"no service is called {unknown[0]!r}; there are {', '.join(found.services)}")
        if await asyncio.to_thread(Path(self._site.endpoints_path).with_name(VERDICT).exists):
            raise NotReadyError("the run is over")
        return find_unready(found, names)

    def _read_endpoints(self) -> Endpoints:
        if not self._site.endpoints_path:
            raise UsageError("cannot read endpoints outside a run: RETINUE_ENDPOINTS is not set")
        return read_endpoints(self._site.endpoints_path)

    async def _stream(
        self, questions: list[Question], service: str, deadline_s: float | None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        results = Batch(self._open_line(service), questions, deadline_s).results()
        try:
            async for index, outcome in results:
                yield index, outcome
        finally:
            await results.aclose()  # type: ignore[attr-defined]

    def _find_url(self, service: str) -> str:
        url = find_url(self._site, service)
        if service not in self._site.urls:
            # A URL is valid for the whole run: asked once.
            self._site = replace(self._site, urls={**self._site.urls, service: url})
        return url

    def _open_line(self, service: str) -> Line:
        headers = {
            "User-Agent": f"retinue-client/{__version__}",
            "Content-Type": "application/json",
            "X-Retinue-Caller": self._caller or f"{socket.gethostname()}:{os.getpid()}",
        }
        if self._site.token:
            headers["Authorization"] = f"Bearer {self._site.token}"
        target = parse_target(self._find_url(service))
        return Line(self._pools.find(), target, service, self._site.node, headers, self._site.hold_s)
