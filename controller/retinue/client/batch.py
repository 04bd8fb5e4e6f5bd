"""Many checks: a few streams at a time, each row exactly once, whatever breaks.

Rows are sent in batches; what a stream did not answer before it broke is sent
again, answered rows never are. A refused or broken batch is followed by a smaller
one, so that a full queue is met by what fits and a row that does harm ends alone.
When the time is over every row without an outcome gets `infra_failed`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from retinue.client.answer import Answer, Broken
from retinue.client.asking import Line, build_default_deadline, build_failure, complete, translate_trouble
from retinue.client.http import Unreached
from retinue.client.patience import INFRA_MAX, Again, Patience, Trouble
from retinue.client.question import BODY_BYTES_MAX, Question, build_body
from retinue.client.reply import TOO_LARGE, UNREADABLE, judge_too_large, parse_line, read_refusal
from retinue.terms.outcome import Outcome, OutcomeKind

STREAMS_MAX = 8
ROWS_MIN = 8
"""A short list is spread over fewer streams rather than thinner ones."""
ROWS_MAX = 64
"""Rows in one stream; times STREAMS_MAX is what is in flight at most."""
BATCH_CHARS = 256 * 1024
"""A gateway keeps bodies up to 1 MiB for sending again; non-ASCII and escapes take several bytes a character."""


@dataclass(slots=True, eq=False)
class Row:
    """One check of the list."""

    index: int
    question: Question
    is_done: bool = False
    is_alone: bool = False
    """Sent by itself from now on: a batch with it was unreadable or too large."""
    failed: int = 0
    """Times the service answered `infra_failed`."""
    last: Outcome | None = None
    """The last such answer."""

    @property
    def chars(self) -> int:
        return len(self.question.head) + len(self.question.check.response)


class Batch:
    """One call of `check_many`."""

    def __init__(self, line: Line, questions: list[Question], deadline_s: float | None) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._rows = [Row(index, question) for index, question in enumerate(questions)]
        self._pending = deque(self._rows)
        self._fair_rows = min(ROWS_MAX, max(ROWS_MIN, -(-len(questions) // STREAMS_MAX)))
        self._batch_rows = self._fair_rows
        self._out: asyncio.Queue[tuple[Row, Outcome] | None] = asyncio.Queue()
        """None: one stream worker ended."""
        self._started_s = self._loop.time()
        self._until_s = self._started_s + deadline_s if deadline_s is not None else None
        self._silence_s = build_default_deadline(line, [question.check for question in questions])
        """Without a deadline: so long without any outcome is the end."""
        self._last_again: Again | None = None
        self._given_up: Again | Outcome | None = None
        """Why nothing more is sent: an outage, or a refusal that is about every row."""

    async def results(self) -> AsyncIterator[tuple[int, Outcome]]:
        """Yield (index, outcome) as each finishes, every row once."""
        streams = min(STREAMS_MAX, -(-len(self._rows) // self._fair_rows))
        workers = [asyncio.create_task(self._work()) for _ in range(streams)]
        for worker in workers:
            worker.add_done_callback(lambda _: self._out.put_nowait(None))
        try:
            while (found := await self._next(workers)) is not None:
                row, outcome = found
                yield row.index, outcome
            what = "no outcome" if self._given_up is None else "given up"
            await _end(workers)
            while not self._out.empty():
                # Came while the workers were ended.
                if (late := self._out.get_nowait()) is not None:
                    yield late[0].index, late[1]
            for row in self._rows:
                if not row.is_done:
                    yield row.index, self._fail(row, what)
        finally:
            await _end(workers)

    async def _next(self, workers: list[asyncio.Task[None]]) -> tuple[Row, Outcome] | None:
        """Return the next finished row; None when there is none, or no time."""
        silent_until_s = self._loop.time() + self._silence_s
        try:
            async with asyncio.timeout_at(silent_until_s if self._until_s is None else self._until_s):
                while not self._is_over(workers):
                    # Without a wait where one is there: a late caller still gets what came in time.
                    found = self._out.get_nowait() if not self._out.empty() else await self._out.get()
                    if found is not None:
                        return found
        except TimeoutError:
            pass
        return None

    def _is_over(self, workers: list[asyncio.Task[None]]) -> bool:
        for worker in workers:
            # A worker ends with an error only by a bug of ours, which must not look like an outage.
            if worker.done():
                worker.result()
        return self._out.empty() and all(worker.done() for worker in workers)

    async def _work(self) -> None:
        """Send batches until nothing is left to send."""
        patience = Patience(self._line.chance)
        while self._given_up is None and (rows := self._take()):
            again = await self._send(rows, patience)
            left = [row for row in rows if not row.is_done]
            self._pending.extend(left)
            if again is None:
                patience.progressed()
                self._batch_rows = min(self._fair_rows, self._batch_rows * 2)
                continue
            self._last_again = again
            self._batch_rows = max(1, min(self._batch_rows, len(rows) // 2))
            wait_s = patience.decide_wait(again, self._loop.time())
            if wait_s is None:
                self._given_up = again
            else:
                await asyncio.sleep(wait_s)

    def _take(self) -> list[Row]:
        rows: list[Row] = []
        chars = 0
        while self._pending and len(rows) < self._batch_rows:
            first = self._pending[0]
            if rows and (first.is_alone or chars + first.chars > BATCH_CHARS):
                break
            rows.append(self._pending.popleft())
            chars += first.chars
            if first.is_alone:
                break
        return rows

    async def _send(self, rows: list[Row], patience: Patience) -> Again | None:
        """Send one batch and hand on what it answers; None when every row of it has had its turn."""
        line = self._line
        body = build_body([row.question for row in rows], is_single=False)
        if len(body) > BODY_BYTES_MAX:
            self._part(rows, judge_too_large(rows[0].question.check, len(body), line.service))
            return None
        try:
            async with line.pool.ask(line.target, "POST", "/v1/checks", line.headers, body) as answer:
                if answer.status == 200:
                    return await self._follow(answer, rows, patience)
                text = await answer.read_whole()
        except (Unreached, Broken) as error:
            return translate_trouble(error)
        if answer.status == TOO_LARGE:
            self._part(rows, judge_too_large(rows[0].question.check, len(body), line.service))
            return None
        refusal = read_refusal(answer.status, answer.headers, text, line.service)
        if isinstance(refusal, Again):
            return refusal
        if answer.status in UNREADABLE:
            self._part(rows, refusal)
        else:
            self._given_up = refusal
        return None

    def _part(self, rows: list[Row], verdict: Outcome) -> None:
        """Give the verdict to a row that was alone; have the rows of a batch sent again, each alone."""
        if len(rows) == 1:
            self._finish(rows[0], verdict)
            return
        for row in rows:
            row.is_alone = True

    async def _follow(self, answer: Answer, rows: list[Row], patience: Patience) -> Again | None:
        """Read one stream to its end."""
        failed: Again | None = None
        seen: set[int] = set()
        while (line := await answer.read_line()) is not None:
            if not line.strip():
                continue
            index, outcome = parse_line(line)
            if not 0 <= index < len(rows) or index in seen:
                raise Broken(f"unreadable line: index {index} twice or out of range")
            seen.add(index)
            row = rows[index]
            row.failed += outcome.outcome is OutcomeKind.INFRA_FAILED
            if outcome.outcome is OutcomeKind.INFRA_FAILED and row.failed <= INFRA_MAX:
                row.last = outcome
                # No `outcome` in it: the count is the row's, and the last word too.
                failed = Again(Trouble.BROKEN, outcome.event, outcome.reason)
                continue
            self._finish(row, outcome)
            patience.progressed()
        if len(seen) < len(rows):
            raise Broken(f"connection closed after {len(seen)} of {len(rows)} rows")
        return failed

    def _finish(self, row: Row, outcome: Outcome) -> None:
        row.is_done = True
        self._out.put_nowait((row, complete(outcome, self._line, row.question.check)))

    def _fail(self, row: Row, what: str) -> Outcome:
        check = row.question.check
        if isinstance(self._given_up, Outcome):
            return complete(self._given_up, self._line, check)
        if row.last is not None:
            return complete(row.last, self._line, check)
        again = self._given_up or self._last_again
        return build_failure(self._line, check, again, self._loop.time() - self._started_s, what)


async def _end(workers: list[asyncio.Task[None]]) -> None:
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
