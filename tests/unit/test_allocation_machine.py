"""The machine itself: control groups, hidden devices, and an nvidia-smi that hangs."""

import os
import stat
from pathlib import Path

import pytest

from retinue.allocation.local import (
    build_local_allocation,
    parse_gpu_information,
    parse_gpu_listing,
    parse_limit_mib,
    parse_memory_groups,
    select_visible_gpus,
)
from retinue.allocation.machine import read_gpu_listing, read_local_allocation, read_memory_mib

LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa1111-2222)
  MIG 1g.10gb     Device  0: (UUID: MIG-cccc)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-aabb3333-4444)
"""
UUIDS = ("GPU-aaaa1111-2222", "GPU-aabb3333-4444")


def fake_root(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def fake_program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(path)


def test_a_machine_is_an_allocation_of_one_node() -> None:
    allocation = build_local_allocation("box", 4, 8000, UUIDS)
    assert (allocation.source, allocation.batch_host, allocation.job_id) == ("local", "box", None)
    assert (allocation.nodes[0].gpus, allocation.nodes[0].gpu_uuids) == (2, UUIDS)


def test_devices_without_a_uuid_are_counted_but_not_named() -> None:
    node = build_local_allocation("", 0, 0, ("GPU-1", "")).nodes[0]
    assert (node.name, node.cpus, node.gpus, node.gpu_uuids) == ("localhost", 1, 2, ())


def test_slices_of_a_device_are_not_devices() -> None:
    assert parse_gpu_listing(LISTING) == UUIDS
    assert parse_gpu_listing("No devices found.\n") == ()


def test_the_drivers_own_list_stands_in_for_a_missing_program() -> None:
    texts = ["Model: \t\t A100\nGPU UUID: \t GPU-1\n", "GPU UUID: \t GPU-????????-????\n", ""]
    assert parse_gpu_information(texts) == ("GPU-1", "", "")


@pytest.mark.parametrize(
    ("visible", "kept"),
    [
        (None, UUIDS),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1", UUIDS[1:]),
        ("1,0", UUIDS[::-1]),
        ("0,7,1", UUIDS[:1]),
        ("0,0", UUIDS[:1]),
        ("GPU-aabb", UUIDS[1:]),
        ("GPU-aa", ()),
        ("MIG-cccc", ("MIG-cccc",)),
    ],
)
def test_hidden_devices_are_not_ours(visible: str | None, kept: tuple[str, ...]) -> None:
    assert select_visible_gpus(UUIDS, visible) == kept


@pytest.mark.parametrize(
    ("text", "limit"), [("max\n", None), ("2147483648\n", 2048), ("9223372036854771712\n", None), ("", None)]
)
def test_no_limit_is_written_in_two_ways(text: str, limit: int | None) -> None:
    assert parse_limit_mib(text) == limit


def test_both_versions_of_control_groups_are_found() -> None:
    text = "12:pids:/x\n11:cpu,memory:/slurm/job_3\n0::/user.slice/a.scope\nrubbish\n"
    assert parse_memory_groups(text) == [("v1", "/slurm/job_3"), ("v2", "/user.slice/a.scope")]


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({"proc/meminfo": "MemTotal:  4194304 kB\n"}, 4096),
        (
            {
                "proc/meminfo": "MemTotal:  4194304 kB\n",
                "proc/self/cgroup": "0::/user/job/step\n",
                "sys/fs/cgroup/user/job/memory.max": "1073741824\n",
                "sys/fs/cgroup/user/job/step/memory.max": "max\n",
            },
            1024,
        ),
        (
            {
                "proc/meminfo": "MemTotal:  4194304 kB\n",
                "proc/self/cgroup": "5:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
            },
            2048,
        ),
        (
            {
                "proc/meminfo": "MemTotal:  4194304 kB\n",
                "proc/self/cgroup": "0::/big\n",
                "sys/fs/cgroup/big/memory.max": "99999999999999\n",
            },
            4096,
        ),
        ({"proc/self/cgroup": "0::/../../x\n", "x/memory.max": "1048576\n"}, 0),
        ({}, 0),
    ],
)
def test_the_lowest_limit_above_us_counts(tmp_path: Path, files: dict[str, str], memory: int) -> None:
    assert read_memory_mib(fake_root(tmp_path, files)) == memory


def test_a_program_that_hangs_costs_its_timeout_and_is_gone(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = fake_program(tmp_path, f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000")
    assert read_gpu_listing(program, timeout_s=2.0) == ""
    pid = int(note.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("body", "text"), [("echo 'GPU 0: X (UUID: GPU-1)'", "GPU 0: X (UUID: GPU-1)\n"), ("echo GPU; exit 9", "")]
)
def test_an_answer_counts_only_with_success(tmp_path: Path, body: str, text: str) -> None:
    assert read_gpu_listing(fake_program(tmp_path, body)) == text


def test_no_program_is_no_device(tmp_path: Path) -> None:
    assert read_gpu_listing(str(tmp_path / "absent")) == ""


def test_this_machine_is_read_with_its_affinity_and_hidden_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5, 9})
    root = fake_root(tmp_path, {"proc/meminfo": "MemTotal:  1048576 kB\n"})
    node = read_local_allocation(root, lambda: LISTING).nodes[0]
    assert (node.cpus, node.memory_mib, node.gpu_uuids) == (3, 1024, UUIDS[1:])


def test_the_driver_is_asked_when_the_program_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    files = {
        "proc/driver/nvidia/gpus/0000:81:00.0/information": "GPU UUID: GPU-late\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "GPU UUID: GPU-early\n",
    }
    node = read_local_allocation(fake_root(tmp_path, files), lambda: "").nodes[0]
    assert node.gpu_uuids == ("GPU-early", "GPU-late")


def test_the_real_machine_can_be_read() -> None:
    node = read_local_allocation().nodes[0]
    assert node.cpus == len(os.sched_getaffinity(0))
    assert node.memory_mib > 0
