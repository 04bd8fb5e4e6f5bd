"""What a search finds: text is text, equals have one order, and the index is what it was when it was built."""

import stat
from pathlib import Path

import pytest
from retrieval_scenes import TEXTS, build, make_model, open_built, search, write_plugin

from retinue.errors import PermanentError, UsageError
from retinue.retrieval.index import Index, Wanted
from retinue.retrieval.lexical import WORDS_MAX
from retinue.retrieval.records import Analyzer, Method

WORDS = {word for text in TEXTS for word in text.split()}
HOSTILE = [
    "title:x AND NOT (operators OR cats)",
    '"warm mat"~5',
    "contents:cats^9",
    "+cats -mat",
    "cats OR",
    "(((((",
    "[a TO z]",
    "*",
    "/.*/",
    "IN [cats dogs]",
    "\\",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One index with vectors for all tests that only look."""
    place = tmp_path_factory.mktemp("searched")
    write_plugin(place, "search_embedder")
    build(place, embedder="search_embedder:embed")
    return place


@pytest.fixture(scope="module")
def index(directory: Path) -> Index:
    return open_built(directory)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_character_of_a_query_is_an_operator(index: Index, text: str) -> None:
    words = "".join(char if char.isalnum() else " " for char in text)
    assert search(index, text) == search(index, words)


def test_words_that_are_operators_elsewhere_are_found(index: Index) -> None:
    assert search(index, "AND OR NOT", 1) == ["p6"]
    assert search(index, "NOT cats", 1) == search(index, "cats not", 1)
    assert search(index, "-cat", 1) == ["p1"]


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("text", ["", " ", "\0", "\0\0 \t", "\n"])
def test_a_query_without_anything_in_it_finds_nothing(index: Index, method: Method, text: str) -> None:
    assert search(index, text, method=method) == []


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("text", ["�", "\U0001f600", "a" * 10**6, "cat " * 10**5, "cat\0mat", "‮cat", "北京大学"])
def test_an_odd_query_is_answered_and_twice_the_same(index: Index, method: Method, text: str) -> None:
    assert search(index, text, method=method) == search(index, text, method=method)


def test_a_word_in_another_script_is_found(index: Index) -> None:
    assert search(index, "北京大学", 1) == ["p7"]


@pytest.mark.parametrize("method", list(Method))
def test_two_passages_that_say_the_same_come_in_the_order_of_the_corpus(index: Index, method: Method) -> None:
    assert search(index, "two passages that say the same", 2, method) == ["p4", "p5"]
    assert search(index, "two passages that say the same", 1, method) == ["p4"]


def test_more_than_there_is_gives_what_there_is(index: Index) -> None:
    assert sorted(search(index, "cat", 1000, Method.DENSE)) == [f"p{number}" for number in range(len(TEXTS))]
    assert search(index, "cat", 1000) == ["p1"]


def test_stems_are_found_by_the_english_analyzer_and_words_by_the_plain_one(index: Index, tmp_path: Path) -> None:
    build(tmp_path, analyzer=Analyzer.PLAIN)
    plain = open_built(tmp_path)
    assert search(index, "sleeping", 1) == ["p1"]
    assert search(plain, "sleeping", 1) == []
    assert search(plain, "SLEEPS", 1) == ["p1"]


def test_of_a_query_of_a_thousand_words_the_rarest_count(tmp_path: Path) -> None:
    common = " ".join(f"common{number}" for number in range(WORDS_MAX + 20))
    build(tmp_path, [*[common] * 20, f"{common} needle"])
    assert search(open_built(tmp_path), f"{common} needle", 1) == ["p20"]


def test_both_methods_together_find_what_one_of_them_does_not(index: Index) -> None:
    found = search(index, "postman runs cat", 3, Method.HYBRID)
    assert set(search(index, "postman runs cat", 1)) | set(search(index, "postman runs cat", 1, Method.DENSE)) <= set(
        found
    )


def test_a_reranker_orders_what_the_first_stage_gives_it(directory: Path) -> None:
    index = open_built(directory, reranker="search_embedder:reverse")
    first = search(open_built(directory), "cat postman harbour two", 4)
    assert search(index, "cat postman harbour two", 2, candidates=4) == first[:1:-1]
    assert search(index, "cat postman harbour two", 1, candidates=2) == [first[1]]


def test_a_reranker_that_fails_is_our_fault_and_says_so(directory: Path) -> None:
    index = open_built(directory, reranker="search_embedder:fail")
    with pytest.raises(PermanentError, match="out of memory"):
        index.search(Wanted("fail", 2, 0, Method.DENSE, with_scores=True))


def test_an_index_is_searched_by_who_may_only_read_it(tmp_path: Path) -> None:
    build(tmp_path)
    paths = [tmp_path / "index", *(tmp_path / "index").rglob("*")]
    before = {path: path.stat().st_mode for path in paths}
    try:
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        assert search(open_built(tmp_path), "cat") == ["p1"]
        assert sorted(paths) == sorted([tmp_path / "index", *(tmp_path / "index").rglob("*")])
    finally:
        for path, mode in before.items():
            path.chmod(stat.S_IMODE(mode))


# --- a model on the CPU -----------------------------------------------------------------


def test_a_model_gives_a_text_the_same_numbers_in_any_company(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", WORDS)
    build(tmp_path, embedder=str(model))
    index = open_built(tmp_path)
    query = Wanted(TEXTS[1], 8, 0, Method.DENSE, with_scores=True)
    found = index.search(query)
    assert found[0].document.id == "p1"
    assert found[0].score == pytest.approx(1.0, abs=1e-5)
    assert index.search(query) == found == open_built(tmp_path, workers=3).search(query)
    assert search(index, "\0 unheard unseen", 3, Method.DENSE) == search(index, "unheard unseen \0", 3, Method.DENSE)


@pytest.mark.parametrize("settings", [{"pooling": "first"}, {"query_prefix": "query: ", "tokens_max": 3}])
def test_a_models_settings_are_beside_it(tmp_path: Path, settings: dict[str, object]) -> None:
    build(tmp_path, embedder=str(make_model(tmp_path / "model", WORDS, **settings)))
    assert len(search(open_built(tmp_path), "cat", 3, Method.DENSE)) == 3


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("model.onnx", b"garbage", "cannot open .*model.onnx"),
        ("tokenizer.json", b"{}", "cannot open .*tokenizer.json"),
        ("tokenizer.json", b"\xff\xff", "cannot open .*tokenizer.json"),
        ("tokenizer.json", None, "there is no tokenizer.json"),
        ("model.onnx", None, "there is no model.onnx"),
        ("embedder.json", b'{"poling": "mean"}', "embedder.json.*poling"),
        ("embedder.json", b'{"pooling": "max"}', "pooling is"),
    ],
)
def test_a_model_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes | None, word: str) -> None:
    model = make_model(tmp_path / "model", WORDS)
    if content is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(content)
    with pytest.raises((UsageError, PermanentError), match=word):
        build(tmp_path, embedder=str(model))


@pytest.mark.parametrize("spec", ["search_embedder:embed_otherwise", "model"])
def test_an_embedder_that_is_not_the_one_of_the_index_is_refused(directory: Path, tmp_path: Path, spec: str) -> None:
    given = str(make_model(tmp_path / "model", WORDS)) if spec == "model" else spec
    with pytest.raises(PermanentError, match="not the one the index was built with"):
        open_built(directory, embedder=given)
    assert open_built(directory, embedder=given, method=Method.BM25).methods == (Method.BM25,)


def test_a_method_that_the_index_has_not_is_refused_at_the_start(tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(PermanentError, match="has no vectors"):
        open_built(tmp_path, method=Method.HYBRID)
