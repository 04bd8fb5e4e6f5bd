"""Orders of hits: the same for everybody, whatever order an engine gives equals in. Pure.

By score, equals by their place in the corpus.
"""

from collections.abc import Callable, Sequence

from retinue.retrieval.records import Hit

RRF_K = 60
"""Source: Cormack, Clarke, Büttcher, "Reciprocal Rank Fusion outperforms Condorcet", SIGIR 2009."""
TIES_MAX = 4096
"""Equals at the end of a list are all looked at up to here."""


def sort_hits(hits: Sequence[Hit]) -> list[Hit]:
    """Order hits by score, equals by place."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.place))


def find_complete(find: Callable[[int], list[Hit]], count: int) -> list[Hit]:
    """Ask an engine for so many that the equals of the last one are all there; give the first `count`.

    Shape:  `find(n)` gives the best n in falling order of score, equals in any.
    """
    asked = count + 1
    while True:
        hits = find(asked)
        if len(hits) < asked or hits[-1].score < hits[count - 1].score or asked >= TIES_MAX:
            return sort_hits(hits)[:count]
        asked = min(TIES_MAX, max(asked * 4, 64))


def fuse_hits(lists: Sequence[Sequence[Hit]], count: int) -> list[Hit]:
    """Fuse ordered lists by the ranks in them.

    Units:  a score is the sum of 1 / (60 + rank), ranks from 1.
    """
    scores: dict[int, float] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, 1):
            scores[hit.place] = scores.get(hit.place, 0.0) + 1.0 / (RRF_K + rank)
    return sort_hits([Hit(place, score) for place, score in scores.items()])[:count]
