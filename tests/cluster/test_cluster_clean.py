"""The look for leftovers finds what is left: one thing of each kind on one node, and none on the others."""

import json
import sys

import pytest

from support.cluster import Cluster, wait_for
from support.cluster_clean import assert_nothing_left, find_left

LEAVE = """
import mmap, os, signal, socket, sys
os.mkdir("/tmp/retinue-1-abc")
open("/dev/shm/left", "w").close()
tcp, path = socket.socket(), socket.socket(socket.AF_UNIX)
tcp.bind(("127.0.0.1", 0))
tcp.listen()
path.bind("/tmp/run-abc.sock")
path.listen()
open("/tmp/is-there", "w").close()
signal.pause()
"""
KINDS = {"processes of the user", "processes of the run", "node directories", "shared memory", "ports", "unix sockets"}


def test_one_thing_of_each_kind_is_found_on_its_node(cluster: Cluster) -> None:
    attempt = cluster.scratch / "run" / "current"
    attempt.mkdir(parents=True)
    (attempt / "verdict.json").write_text(json.dumps({"run_id": "abc"}))
    assert_nothing_left(cluster, cluster.scratch / "run")
    # Its parent is gone, as that of what a run left would be.
    away = 'exec setsid --fork "$@" </dev/null >/dev/null 2>&1'
    leave = ["sh", "-c", away, "sh", sys.executable, "-c", LEAVE]
    assert cluster.run_on("node2", leave, env={"RETINUE_RUN_ID": "abc"}).code == 0
    wait_for("it to be there", lambda: cluster.run_on("node2", ["ls", "/tmp/is-there"]).code == 0)
    found = find_left(cluster, cluster.scratch / "run", cluster.nodes)
    assert set(found) == {"node2"}
    assert set(found["node2"]) == KINDS
    with pytest.raises(AssertionError, match="node2"):
        assert_nothing_left(cluster, cluster.scratch / "run")
    cluster.restore()
    cluster.run_on("node2", ["rm", "-r", "/tmp/retinue-1-abc", "/dev/shm/left", "/tmp/run-abc.sock", "/tmp/is-there"])
    assert_nothing_left(cluster, cluster.scratch / "run")
