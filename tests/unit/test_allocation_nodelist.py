"""Node lists: what Slurm prints, what people type, and what must be refused with its place."""

import random
import re

import pytest

from retinue.allocation.nodelist import compress_nodelist, parse_distinct_nodelist, parse_nodelist
from retinue.errors import AllocationError

READABLE = [
    ("node[001-003,07]-ib", "node001-ib node002-ib node003-ib node07-ib"),
    ("rack[1-2]-node[01-02]-ib0", "rack1-node01-ib0 rack1-node02-ib0 rack2-node01-ib0 rack2-node02-ib0"),
    ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
    ("cl2n[001-002]", "cl2n001 cl2n002"),
    ("b1u01n1,b2u[05,02]n3", "b1u01n1 b2u05n3 b2u02n3"),
    ("n1,n2-ib,n[3-4]", "n1 n2-ib n3 n4"),
    ("node[1-3]", "node1 node2 node3"),
    ("n[9-11]", "n9 n10 n11"),
    ("n[08-11]", "n08 n09 n10 n11"),
    ("n[098-101]", "n098 n099 n100 n101"),
    ("gpu.cluster.example", "gpu.cluster.example"),
    ("[1-2]", "1 2"),
    ("n[5]", "n5"),
    ("n[1-1]", "n1"),
]

REFUSED = [
    ("n[3-1]", "the range '3-1' runs backwards at column 3"),
    ("n[]", "an empty range at column 3"),
    ("n[1,]", "an empty range at column 5"),
    ("n[1-", "'[' without ']' at column 2"),
    ("n1]", "']' without '[' at column 3"),
    ("n[1[2]]", "a bracket inside a bracket at column 4"),
    ("", "an empty name at column 1"),
    ("n1,,n2", "an empty name at column 4"),
    ("n1,", "an empty name at column 4"),
    (",n1", "an empty name at column 1"),
    ("n[a-b]", "'a-b' is not a number or a range at column 3"),
    ("n[1-2-3]", "'1-2-3' is not a number or a range at column 3"),
    ("n[-3]", "'-3' is not a number or a range at column 3"),
    ("n[٣]", "'٣' is not a number or a range at column 3"),
    ("n1,(null)", "'(' is not part of a node name at column 4"),
    ("n 1", "' ' is not part of a node name at column 2"),
    ("../etc", "'/' is not part of a node name at column 3"),
    ("..", "a node name does not begin with '.' at column 1"),
    ("-w[1-2]", "a node name does not begin with '-' at column 1"),
    ("n[0-65536]", "more than 65536 names at column 1"),
    ("n1,n[1-65536]", "more than 65536 names at column 4"),
    ("a[1-999]b[1-999]", "more than 65536 names at column 1"),
    ("n[1-999999999999999999]", "more than 65536 names at column 1"),
    ("n[1-9999999999999999999]", "'1-9999999999999999999' is not a number or a range at column 3"),
]


@pytest.mark.parametrize(("text", "names"), READABLE)
def test_order_padding_and_suffixes_survive(text: str, names: str) -> None:
    assert parse_nodelist(text) == tuple(names.split())


@pytest.mark.parametrize(("text", "cause"), REFUSED)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, cause: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse_nodelist(text)
    assert str(caught.value) == f"cannot read node list {text!r}: {cause}"


def test_the_largest_list_is_still_read() -> None:
    assert len(parse_nodelist("n[1-65536]")) == 65_536


def test_a_long_list_is_shortened_in_the_message() -> None:
    with pytest.raises(AllocationError) as caught:
        parse_nodelist("n" * 5000 + "!")
    assert len(str(caught.value)) < 400


def test_an_allocation_does_not_name_a_node_twice() -> None:
    assert parse_nodelist("n1,n[1-2]") == ("n1", "n1", "n2")
    with pytest.raises(AllocationError, match="names 'n1' twice"):
        parse_distinct_nodelist("n1,n[1-2]")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n9", "n10"], "n[9-10]"),
        (["n001", "n02", "n3"], "n[001,02,3]"),
        (["n3", "n1", "n2"], "n[3,1-2]"),
        (["a", "b"], "a,b"),
        (["n1", "login", "n2"], "n1,login,n2"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
        (["r1n1", "r1n2", "r2n1", "r2n2"], "r1n[1-2],r2n[1-2]"),
        (["n99", "n100"], "n[99-100]"),
        (["n099", "n0100"], "n[099,0100]"),
        (["1", "2"], "[1-2]"),
        ([], ""),
    ],
)
def test_only_trailing_numbers_are_folded_because_old_srun_refuses_suffixes(names: list[str], text: str) -> None:
    assert compress_nodelist(names) == text


@pytest.mark.parametrize("name", ["", "n[1]", "a,b", "a b", "-w", "a/b", "n1\n"])
def test_a_name_that_would_change_the_list_is_refused(name: str) -> None:
    with pytest.raises(AllocationError, match=re.escape(repr(name))):
        compress_nodelist(["n1", name])


def test_a_compressed_list_reads_back_as_it_was() -> None:
    chance = random.Random(20240611)
    for _ in range(2000):
        names = [_random_name(chance) for _ in range(chance.randint(1, 12))]
        if chance.random() < 0.5:
            names.sort()
        assert parse_nodelist(compress_nodelist(names)) == tuple(names)


def _random_name(chance: random.Random) -> str:
    words = [chance.choice(["n", "node", "r1-n", "9", "x_0.", "b"])]
    for _ in range(chance.randint(0, 2)):
        words.append(str(chance.choice([0, 1, 8, 9, 10, 11, 99, 100, 10**20])).zfill(chance.randint(1, 4)))
        words.append(chance.choice(["", "", "-ib", "u"]))
    return "".join(words)
