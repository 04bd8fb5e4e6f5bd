"""Blocking calls in threads: waited for so long and no longer, and nothing that comes late is lost."""

import asyncio
import os
import threading

import pytest
from sandbox_scenes import until

from retinue.sandbox.aside import run_aside


async def test_a_result_and_an_error_come_back_as_they_are() -> None:
    assert await run_aside(lambda: 42, 10) == 42
    with pytest.raises(FileNotFoundError):
        await run_aside(lambda: os.stat("/nothing/at/all"), 10)


async def test_a_call_that_does_not_return_is_left_behind_and_its_late_result_given_away() -> None:
    go, late = threading.Event(), list[str]()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.05 s"):
        await run_aside(lambda: str(go.wait(60)), 0.05, late.append)
    assert late == []
    go.set()
    await until(lambda: late)
    assert late == ["True"]


async def test_who_is_cancelled_leaves_the_result_to_be_given_away_before_and_after() -> None:
    go, late = threading.Event(), list[str]()
    waiting = asyncio.create_task(run_aside(lambda: str(go.wait(60)), 60, late.append))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await until(lambda: late)

    done = threading.Event()
    waiting = asyncio.create_task(run_aside(lambda: (done.set(), "early")[1], 60, late.append))
    await asyncio.sleep(0)
    assert done.wait(20)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: late == ["True", "early"])


async def test_a_loop_that_was_blocked_does_not_blame_the_call() -> None:
    waiting = asyncio.create_task(run_aside(lambda: "fine", 0.01))
    await asyncio.sleep(0)
    blocked = threading.Event()
    assert not blocked.wait(0.1)  # The loop stands still for longer than the call may take.
    assert await waiting == "fine"


async def test_no_thread_is_left() -> None:
    before = threading.active_count()
    await asyncio.gather(*(run_aside(lambda: 1, 10) for _ in range(50)))
    await until(lambda: threading.active_count() == before)
