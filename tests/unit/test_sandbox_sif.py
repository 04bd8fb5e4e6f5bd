"""The headers of image files: what can be mounted is found, and no number of a file is believed unseen."""

import os
import random
from pathlib import Path

import pytest

from retinue.sandbox.image_errors import ImageRefused, Reason
from retinue.sandbox.sif import Content, read_content
from support.sif_file import ABSENT, DATA_OFFSET, GOOD, HEADER, TABLE_OFFSET, Part, build_sif, change

SQUASHFS = GOOD.pack()


def read(data: bytes, machine: str = "x86_64") -> Content:
    fd = os.memfd_create("image")
    try:
        os.write(fd, data)
        return read_content(fd, "it", machine)
    finally:
        os.close(fd)


def refuse(data: bytes, machine: str = "x86_64") -> Reason:
    with pytest.raises(ImageRefused, match=r"cannot use image 'it': .*; ") as refused:
        read(data, machine)
    return refused.value.reason


def test_a_squashfs_file_is_mounted_from_its_start() -> None:
    content = read(SQUASHFS)
    assert (content.offset_bytes, content.size_bytes, content.head) == (0, 4096, SQUASHFS[:96])


def test_of_a_sif_file_the_primary_partition_is_found_wherever_it_is() -> None:
    others = [Part(b"Bootstrap: docker\n", kind=0x4001), Part(b"overlay", part=4), Part(b"gone", is_used=False)]
    content = read(build_sif(*others, Part(SQUASHFS)))
    assert content.offset_bytes == DATA_OFFSET + sum(len(other.content) for other in others)
    assert content.size_bytes == 4096


def test_a_sif_file_that_was_built_twice_is_two_images() -> None:
    one = build_sif(Part(SQUASHFS))
    assert read(one).head != read(one[:48] + b"another uuid of." + one[64:]).head


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Part(SQUASHFS, file_system=5), Reason.UNSUPPORTED),
        (Part(SQUASHFS, file_system=2), Reason.UNSUPPORTED),
        (Part(SQUASHFS, file_system=77), Reason.UNSUPPORTED),
        (Part(SQUASHFS, arch=b"04"), Reason.UNSUPPORTED),
        (Part(SQUASHFS, part=1), Reason.DAMAGED),
        (Part(SQUASHFS, is_used=False), Reason.DAMAGED),
        (Part(SQUASHFS, offset=-4096), Reason.DAMAGED),
        (Part(SQUASHFS, offset=0), Reason.DAMAGED),
        (Part(SQUASHFS, offset=2**62, size=2**62), Reason.DAMAGED),
        (Part(SQUASHFS, size=0), Reason.DAMAGED),
        (Part(SQUASHFS, size=-1), Reason.DAMAGED),
        (Part(SQUASHFS, size=2**40), Reason.DAMAGED),
        (Part(SQUASHFS, size=3999), Reason.DAMAGED),
        (Part(b"\0" * 4096), Reason.DAMAGED),
    ],
)
def test_a_partition_that_cannot_be_mounted_is_refused(part: Part, reason: Reason) -> None:
    assert refuse(build_sif(part)) == reason


def test_a_sif_file_needs_exactly_one_primary_partition() -> None:
    assert refuse(build_sif()) == Reason.DAMAGED
    assert refuse(build_sif(Part(SQUASHFS), Part(SQUASHFS))) == Reason.DAMAGED


@pytest.mark.parametrize("total", [-1, 0, 10**9, 2**62])
def test_a_descriptor_table_of_an_impossible_size_is_refused(total: int) -> None:
    assert refuse(build_sif(Part(SQUASHFS), total=total)) == Reason.DAMAGED


def test_a_sif_file_of_another_version_is_refused_and_one_for_any_machine_is_not() -> None:
    assert refuse(build_sif(Part(SQUASHFS), version=b"02\0")) == Reason.UNSUPPORTED
    assert read(build_sif(Part(SQUASHFS, arch=b"00"))).size_bytes == 4096
    assert refuse(build_sif(Part(SQUASHFS)), "aarch64") == Reason.UNSUPPORTED
    assert read(build_sif(Part(SQUASHFS)), "a machine without a code").size_bytes == 4096


@pytest.mark.parametrize(
    "size", [42, HEADER.size - 1, HEADER.size, TABLE_OFFSET, TABLE_OFFSET + 600, DATA_OFFSET, DATA_OFFSET + 95, -1]
)
def test_a_sif_file_that_was_cut_short_is_damaged(size: int) -> None:
    assert refuse(build_sif(Part(SQUASHFS))[:size]) == Reason.DAMAGED


@pytest.mark.parametrize("data", [b"", b"x", b"#!/bin/sh\n" * 99, b"\x7fELF" + bytes(999), bytes(9999)])
def test_what_is_neither_sif_nor_squashfs_is_no_image(data: bytes) -> None:
    assert refuse(data) == Reason.NOT_AN_IMAGE


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"major": 3}, Reason.UNSUPPORTED),
        ({"minor": 1}, Reason.UNSUPPORTED),
        ({"magic": 0x68737173}, Reason.UNSUPPORTED),
        ({"compression": 0}, Reason.UNSUPPORTED),
        ({"compression": 7}, Reason.UNSUPPORTED),
        ({"block_log": 16}, Reason.DAMAGED),
        ({"block_log": 11, "block_bytes": 2048}, Reason.DAMAGED),
        ({"block_log": 21, "block_bytes": 1 << 21}, Reason.DAMAGED),
        ({"id_count": 0}, Reason.DAMAGED),
        ({"used_bytes": 4097}, Reason.DAMAGED),
        ({"used_bytes": ABSENT}, Reason.DAMAGED),
        ({"used_bytes": 3900}, Reason.DAMAGED),
        ({"id_table": ABSENT}, Reason.DAMAGED),
        ({"inode_table": 95}, Reason.DAMAGED),
        ({"inode_table": 3500}, Reason.DAMAGED),
        ({"directory_table": 3901}, Reason.DAMAGED),
        ({"fragment_table": 4001}, Reason.DAMAGED),
        ({"export_table": 5}, Reason.DAMAGED),
        ({"xattr_table": 2**63}, Reason.DAMAGED),
        ({"root": 500 << 16}, Reason.DAMAGED),
        ({"root": 8192}, Reason.DAMAGED),
    ],
)
def test_a_squashfs_header_that_cannot_be_true_is_refused(values: dict[str, int], reason: Reason) -> None:
    assert refuse(change(**values)) == reason


def test_a_squashfs_without_the_tables_it_may_lack_is_fine() -> None:
    assert read(change(fragment_table=ABSENT, export_table=ABSENT, xattr_table=3850)).offset_bytes == 0


def test_whatever_bytes_are_changed_the_answer_is_a_place_in_the_file_or_a_refusal() -> None:
    dice = random.Random(5)
    whole = build_sif(Part(SQUASHFS))
    outcomes = set()
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            start = dice.choice([0, TABLE_OFFSET, DATA_OFFSET])
            data[start + dice.randrange(128)] = dice.randrange(256)
        try:
            content = read(bytes(data))
            assert 0 <= content.offset_bytes < content.offset_bytes + content.size_bytes <= len(data)
            outcomes.add("fine")
        except ImageRefused as refused:
            outcomes.add(refused.reason)
    assert {"fine", Reason.DAMAGED, Reason.NOT_AN_IMAGE, Reason.UNSUPPORTED} <= outcomes


def test_an_image_on_a_disk_is_read_like_one_in_memory(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(build_sif(Part(SQUASHFS)))
    fd = os.open(tmp_path / "image.sif", os.O_RDONLY)
    assert read_content(fd, "it", "x86_64") == read(build_sif(Part(SQUASHFS)))
    os.close(fd)
