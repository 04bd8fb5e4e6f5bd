"""Which memory of the warm parent is put into huge pages."""

from retinue.checks.heap import _list_huge

MIB = 2**20


def build_line(start: int, end: int, rights: str = "rw-p", inode: int = 0, name: str = "") -> str:
    return f"{start:x}-{end:x} {rights} 00000000 00:00 {inode} {name}\n"


def test_only_whole_aligned_pages_within_a_mapping_are_named() -> None:
    maps = build_line(3 * MIB, 9 * MIB) + build_line(20 * MIB + 4096, 23 * MIB)
    assert list(_list_huge(maps)) == [4 * MIB, 6 * MIB]


def test_a_mapping_that_ends_with_a_page_gives_its_last_page() -> None:
    assert list(_list_huge(build_line(4 * MIB, 8 * MIB, name="[heap]"))) == [4 * MIB, 6 * MIB]


def test_files_stacks_and_what_cannot_be_written_are_left_alone() -> None:
    maps = (
        build_line(2 * MIB, 6 * MIB, inode=77, name="/usr/lib/some lib.so")
        + build_line(8 * MIB, 12 * MIB, rights="r--p")
        + build_line(14 * MIB, 18 * MIB, rights="rw-s")
        + build_line(20 * MIB, 24 * MIB, name="[stack]")
    )
    assert list(_list_huge(maps)) == []
