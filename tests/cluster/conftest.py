"""Fixtures of the tests that run inside a throwaway Slurm, on its `login` host, as an ordinary user."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cluster import Cluster

# Read when pytest starts: no test sees RETINUE_ variables of its caller (tests/conftest.py).
STATE = os.environ.get("RETINUE_CLUSTER")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if STATE:
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="needs a Slurm: run `make cluster-test` as root"))


@contextmanager
def borrow(scratch: Path) -> Iterator[Cluster]:
    """The standing cluster, healthy and idle; one borrower has it at a time, also under xdist."""
    assert STATE is not None
    standing = Cluster(Path(STATE), scratch)
    with open(Path(STATE) / "shared" / "scratch" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        standing.restore()
        yield standing
        standing.restore()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The cluster for one test."""
    with borrow(tmp_path) as standing:
        yield standing


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster for all tests of a file that look at the same runs; none of them may ask for `cluster` too."""
    with borrow(tmp_path_factory.mktemp("runs")) as standing:
        yield standing
