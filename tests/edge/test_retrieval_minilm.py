"""The real sentence model, where it was fetched: it finds by meaning what shares no word, the same each time."""

from pathlib import Path

import pytest
from retrieval_scenes import build, open_built, search

from retinue import models
from retinue.errors import UsageError
from retinue.retrieval.index import Wanted
from retinue.retrieval.records import Method

PAIRS = {
    "A kitten rests upon the rug.": "cat lying down on a carpet",
    "Stock prices fell sharply in autumn.": "shares lost value at the end of the year",
    "The doctor prescribed antibiotics for the infection.": "physician gave medicine against bacteria",
    "The match ended in a draw after extra time.": "nobody won the football game",
    "Rain is expected along the coast tomorrow.": "weather forecast for the seaside",
}


@pytest.fixture(autouse=True)
def fetched() -> None:
    try:
        models.find("minilm")
    except UsageError:
        pytest.skip("cannot here: the model was not fetched (retinue models fetch minilm)")


def test_meaning_is_found_where_no_word_is_shared(tmp_path: Path) -> None:
    build(tmp_path, list(PAIRS), embedder="minilm")
    index = open_built(tmp_path)
    assert [search(index, query, 1, Method.DENSE)[0] for query in PAIRS.values()] == ["p0", "p1", "p2", "p3", "p4"]
    wanted = Wanted("cat", 5, 0, Method.HYBRID, with_scores=True)
    assert index.search(wanted) == index.search(wanted) == open_built(tmp_path, workers=3).search(wanted)


def test_an_endless_passage_and_query_are_cut(tmp_path: Path) -> None:
    build(tmp_path, ["a rug " * 50_000, "shares fell"], embedder="minilm")
    assert search(open_built(tmp_path), "carpet " * 100_000, 1, Method.DENSE) == ["p0"]
