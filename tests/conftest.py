"""Fixtures for all tests: a clean environment, root-only tests by name, no silent skips in CI."""

import asyncio
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from support.stuck_kernel import is_kernel_stuck

# pytest-asyncio asks for the thread's current loop; where none was ever set asyncio makes one, which
# nobody closes, and some later test fails with its ResourceWarning. "None" is an answer too.
asyncio.set_event_loop(None)

STUCK = "STUCK_KERNEL"
"""Set for the workers of a run by the process that starts them."""
ALIVE = ("edge", "faults", "cluster")
"""Folders of tests that start what is confined by a seccomp filter."""


def pytest_configure(config: pytest.Config) -> None:
    """Ask once: every process that asks a stuck kernel stays for ever."""
    if not hasattr(config, "workerinput"):
        os.environ[STUCK] = "1" if is_kernel_stuck() else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(STUCK):
        skip = pytest.mark.skip(reason="cannot here: this kernel is stuck, no filter can be installed; reboot it")
        for item in items:
            if item.path.relative_to(Path(__file__).parent).parts[0] in ALIVE:
                item.add_marker(skip)
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: run `make test` as root"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skip is a failure, unless its reason says that the machine cannot do it."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "cannot here" not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the caller's Slurm job, run, or proxies."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "RETINUE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
