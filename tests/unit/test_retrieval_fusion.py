"""The order of hits is the same for everybody, whatever order an engine gives equals in."""

import random

import pytest

from retinue.retrieval.fusion import TIES_MAX, find_complete, fuse_hits, sort_hits
from retinue.retrieval.records import Hit


class Engine:
    """Gives the best first, equals in an order of its own, as segments of an index do."""

    def __init__(self, hits: list[Hit], seed: int) -> None:
        random.Random(seed).shuffle(hits)
        self._hits = sorted(hits, key=lambda hit: -hit.score)
        self.asked: list[int] = []

    def find(self, count: int) -> list[Hit]:
        self.asked.append(count)
        return self._hits[:count]


def test_equals_come_in_the_order_of_the_corpus() -> None:
    assert sort_hits([Hit(9, 1.0), Hit(2, 2.0), Hit(1, 1.0)]) == [Hit(2, 2.0), Hit(1, 1.0), Hit(9, 1.0)]


@pytest.mark.parametrize("seed", range(5))
def test_a_list_cut_among_equals_has_those_that_come_first_in_the_corpus(seed: int) -> None:
    hits = [Hit(place, 5.0 if place == 70 else 1.0 if place % 3 else 0.5) for place in range(100)]
    assert [hit.place for hit in find_complete(Engine(hits, seed).find, 4)] == [70, 1, 2, 4]


def test_a_list_that_is_not_cut_among_equals_is_asked_for_once() -> None:
    engine = Engine([Hit(place, float(place)) for place in range(100)], 0)
    assert [hit.place for hit in find_complete(engine.find, 3)] == [99, 98, 97]
    assert engine.asked == [4]


@pytest.mark.parametrize(("there", "wanted"), [(0, 3), (2, 3), (3, 3)])
def test_fewer_hits_than_wanted_are_all_of_them(there: int, wanted: int) -> None:
    engine = Engine([Hit(place, 1.0) for place in range(there)], 1)
    assert [hit.place for hit in find_complete(engine.find, wanted)] == list(range(min(there, wanted)))


def test_a_corpus_of_equals_ends_the_search_for_them() -> None:
    engine = Engine([Hit(place, 1.0) for place in range(3 * TIES_MAX)], 2)
    assert len(find_complete(engine.find, 5)) == 5
    assert max(engine.asked) == TIES_MAX


def test_fusion_counts_ranks_and_not_scores() -> None:
    words = [Hit(3, 900.0), Hit(1, 800.0), Hit(2, 1.0)]
    vectors = [Hit(1, 0.9), Hit(4, 0.8), Hit(3, 0.7)]
    fused = fuse_hits([words, vectors], 10)
    assert [hit.place for hit in fused] == [1, 3, 4, 2]
    assert fused[0].score == pytest.approx(1 / 62 + 1 / 61)
    assert fuse_hits([words, vectors], 2) == fused[:2]


def test_fused_equals_come_in_the_order_of_the_corpus_too() -> None:
    assert [hit.place for hit in fuse_hits([[Hit(8, 1.0)], [Hit(5, 1.0)]], 2)] == [5, 8]
