"""A launch waits until its GPUs' memory is free, and then, refused, names the holder."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from retinue.errors import TransientError
from retinue.node import gpus
from retinue.node.gpu_reader import GpuReader
from retinue.node.gpus import Gpu, find_held, parse_gpus, wait_until_free

SAID = """\
0, GPU-aaaa, 61000, 81920
GPU-aaaa, 4242, 60800, python3, train.py
1, GPU-bbbb, 4, 81920
2, GPU-cccc, 30000, 81920
No devices were found
"""


def test_what_nvidia_smi_says_is_read_whatever_comes_first() -> None:
    found = parse_gpus("\n".join(reversed(SAID.splitlines())))
    assert [gpu.number for gpu in found] == ["2", "1", "0"]
    assert found[2] == Gpu("0", "GPU-aaaa", 61000, 81920, ("pid 4242 (python3, train.py), 60800 MiB",))


@pytest.mark.parametrize("devices", ["0", "GPU-aaaa", "1,0"])
def test_a_held_gpu_is_told_with_its_holder(devices: str) -> None:
    held = find_held(parse_gpus(SAID), devices)
    assert held == "61000 of 81920 MiB of GPU 0 are held by pid 4242 (python3, train.py), 60800 MiB"


def test_a_gpu_that_nobody_names_a_holder_of_is_held_all_the_same_and_another_ones_memory_is_not_ours() -> None:
    assert "held by nobody that the driver names" in find_held(parse_gpus(SAID), "2")
    assert find_held(parse_gpus(SAID), "1") == ""


async def test_a_launch_waits_until_the_memory_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "POLL_S", 0.0)
    answers = [parse_gpus(SAID), parse_gpus(SAID), parse_gpus(SAID.replace("61000", "10"))]
    notes: list[str] = []

    async def read() -> Sequence[Gpu]:
        return answers.pop(0)

    await wait_until_free(read, "0", notes.append)
    assert answers == []
    assert notes[0].startswith("waits for GPU memory: 61000 of 81920 MiB of GPU 0")
    assert notes[-1] == ""


async def test_memory_that_never_comes_back_refuses_the_launch_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "WAIT_S", 0.0)

    async def read() -> Sequence[Gpu]:
        return parse_gpus(SAID)

    with pytest.raises(TransientError, match=r"held by pid 4242 \(python3"):
        await wait_until_free(read, "0", lambda cause: None)


async def test_what_nobody_can_tell_holds_nothing_up() -> None:
    async def read() -> Sequence[Gpu]:
        return ()

    await asyncio.wait_for(wait_until_free(read, "0", lambda cause: None), 5.0)


def read_all(reader: GpuReader) -> str:
    reader.start()
    while (text := reader.take()) is None:
        pass
    return text


def test_the_reader_asks_both_questions_of_the_program_in_path(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase $1 in *gpu=*) echo "0, GPU-a, 9000, 9999";; *) echo "GPU-a, 7, 8999, x";; esac\n'
    )
    program.chmod(0o755)
    reader = GpuReader({"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert parse_gpus(read_all(reader)) == [Gpu("0", "GPU-a", 9000, 9999, ("pid 7 (x), 8999 MiB",))]
    assert reader.fd is None


def test_a_host_without_the_program_answers_nothing_at_once(tmp_path: Path) -> None:
    assert read_all(GpuReader({"PATH": str(tmp_path)})) == ""
