"""How fast archives and files pass in and out of a root: MB/s and entries/s, beside GNU tar on the same files.

    PYTHONPATH=controller:tests/edge python tests/bench/bench_sandbox_files.py [DIRECTORY]

DIRECTORY is a tmpfs, as a sandbox's disk is; a fresh one below /dev/shm by default.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from file_scenes import download, upload

from retinue.sandbox import files

MIB = 2**20
LARGE_COUNT, LARGE_BYTES = 8, 64 * MIB
SMALL_COUNT, SMALL_BYTES = 30_000, 1000
CALL_COUNT = 3000


def fill(top: Path, count: int, size: int) -> None:
    """So many files, a hundred in each directory."""
    content = os.urandom(size)
    for number in range(count):
        folder = top / f"d{number // 100}"
        folder.mkdir(exist_ok=True, parents=True)
        (folder / f"file-{number}").write_bytes(content)


async def measure_archive(fd: int, base: Path, name: str, count: int, size: int) -> None:
    """Out, and in again."""
    fill(base / name, count, size)
    began = time.perf_counter()
    data, _ = await download(fd, f"/{name}")
    out_s = time.perf_counter() - began
    began = time.perf_counter()
    result = await upload(fd, data, f"/{name}-copy")
    in_s = time.perf_counter() - began
    assert result.files == count
    tar_out_s, tar_in_s = measure_tar(base / name, base / f"{name}-tar")
    for way, took_s, tar_s in (("download", out_s, tar_out_s), ("upload", in_s, tar_in_s)):
        rate = f"{len(data) / took_s / 1e6:8.0f} MB/s {count / took_s:9.0f} entries/s"
        print(f"{name:6} {way:9} {rate}   {took_s / tar_s:.1f} x GNU tar")


def measure_tar(source: Path, target: Path) -> tuple[float, float]:
    """GNU tar, through a pipe into memory and back."""
    target.mkdir()
    began = time.perf_counter()
    data = subprocess.run(["tar", "-C", source, "-c", "."], capture_output=True, check=True).stdout
    middle = time.perf_counter()
    subprocess.run(["tar", "-C", target, "-x"], input=data, check=True)
    return middle - began, time.perf_counter() - middle


async def measure_calls(fd: int) -> None:
    """One small file, again and again."""
    for name, call in (
        ("write 1 KB", lambda: files.write(fd, "/d/e/f", bytes(1000), parents=True)),
        ("read 1 KB", lambda: files.read(fd, "/d/e/f")),
        ("stat", lambda: files.stat(fd, "/d/e/f")),
    ):
        took_s = []
        for _ in range(CALL_COUNT):
            began = time.perf_counter()
            await call()
            took_s.append(time.perf_counter() - began)
        took_us = sorted(value * 1e6 for value in took_s)
        print(f"{name:16} p50 {took_us[CALL_COUNT // 2]:6.0f} us   p99 {took_us[CALL_COUNT * 99 // 100]:6.0f} us")


async def main(base: Path) -> None:
    fd = os.open(base, os.O_PATH | os.O_DIRECTORY)
    await measure_archive(fd, base, "large", LARGE_COUNT, LARGE_BYTES)
    await measure_archive(fd, base, "small", SMALL_COUNT, SMALL_BYTES)
    await measure_calls(fd)
    began = time.perf_counter()
    count = await files.remove(fd, "/small", recursive=True)
    print(f"{'remove':16} {count / (time.perf_counter() - began):.0f} entries/s")
    os.close(fd)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else "/dev/shm") as folder:
        asyncio.run(main(Path(folder)))
