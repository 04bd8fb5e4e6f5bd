"""Building an index: whole or not at all, once for all who ask, and on from where it was."""

import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from retrieval_scenes import TEXTS, build, nothing, open_built, search, write_corpus, write_plugin

from retinue.cli.main import cli
from retinue.errors import PermanentError, TransientError, UsageError
from retinue.retrieval.build import Order, build_index
from retinue.retrieval.dense import choose_shape
from retinue.retrieval.facts import check_files, read_facts
from retinue.retrieval.passages import Damaged
from retinue.retrieval.records import DENSE, FACTS, LEXICAL, PASSAGES, Analyzer
from retinue.retrieval.turn import take_turn
from support.real_run import wait_for


def list_names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_what_was_built_is_found_again_and_nothing_else_is_left(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert not built.was_there
    assert (built.facts.passages, built.facts.dense) == (len(TEXTS), None)
    assert list_names(tmp_path) == {"corpus.jsonl", "index"}
    again = build(tmp_path)
    assert again.was_there
    assert again.facts == built.facts == read_facts(tmp_path / "index")
    check_files(tmp_path / "index", built.facts, nothing)
    assert search(open_built(tmp_path), "harbour tides") == ["p0"]


def test_four_who_build_the_same_at_once_build_it_once(tmp_path: Path) -> None:
    texts = [f"passage {number} of many" for number in range(2000)]
    write_corpus(tmp_path / "corpus.jsonl", texts)
    order = Order(tmp_path / "corpus.jsonl", tmp_path / "index")
    with ThreadPoolExecutor(2) as pool:
        inside = [pool.submit(build_index, order, nothing) for _ in range(2)]
        words = ["index", "build", str(order.corpus), "--out", str(order.out)]
        argv = [sys.executable, "-P", "-m", "retinue", *words]
        outside = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        printed = [process.communicate(timeout=60)[0] for process in outside]
        was_there = [built.result(60).was_there for built in inside]
    assert [process.returncode for process in outside] == [0, 0]
    was_there += ["was there" in text for text in printed]
    assert sorted(was_there) == [False, True, True, True]
    assert list_names(tmp_path) == {"corpus.jsonl", "index"}


def test_a_builder_that_died_among_the_vectors_is_gone_on_with_by_row(tmp_path: Path) -> None:
    plugin = importlib.import_module(write_plugin(tmp_path, "dying_embedder"))
    texts = [f"passage {number} of many" for number in range(300)]
    plugin.limit = 150
    with pytest.raises(PermanentError, match="no more"):
        build(tmp_path, texts, embedder="dying_embedder:embed_and_die")
    [left] = tmp_path.glob("index.building-*")
    rows = (left / "vectors.f32").stat().st_size // 256
    assert 100 < rows < 300
    with open(left / "vectors.f32", "ab") as stream:
        stream.write(b"half a row")
    words = (left / LEXICAL / "meta.json").stat().st_ino
    plugin.limit, plugin.asked[:] = 10**9, []
    built = build(tmp_path, texts, embedder="dying_embedder:embed_and_die")
    # The mark, and the rows that were not there.
    assert sum(plugin.asked) == 1 + 300 - rows
    assert (tmp_path / "index" / LEXICAL / "meta.json").stat().st_ino == words
    assert list_names(tmp_path) >= {"corpus.jsonl", "index"}
    assert not list(tmp_path.glob("index.*"))
    check_files(tmp_path / "index", built.facts, nothing)
    (tmp_path / "elsewhere").mkdir()
    at_once = build(tmp_path / "elsewhere", texts, embedder="dying_embedder:embed_and_die")
    assert built.facts.files[DENSE] == at_once.facts.files[DENSE]


def test_a_builder_that_was_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    texts = [f"passage {number} of many" for number in range(300)]
    corpus = write_corpus(tmp_path / "corpus.jsonl", texts)
    (tmp_path / "hang").touch()
    # Hangs in the third batch as long as the file is there.
    module = (
        "import os, time\ncalls = []\ndef embed(texts, kind):\n    calls.append(len(texts))\n"
        f"    while len(calls) > 3 and os.path.exists({str(tmp_path / 'hang')!r}):\n        time.sleep(0.01)\n"
        "    return [[1.0, float(len(text))] for text in texts]\n"
    )
    (tmp_path / "killed_embedder.py").write_text(module)
    argv = [sys.executable, "-m", "retinue", "index", "build", str(corpus), "--out", str(tmp_path / "index")]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    builder = subprocess.Popen([*argv, "--dense", "killed_embedder:embed"], env=os.environ | {"PYTHONPATH": path})
    try:
        wait_for("two batches", lambda: [p for p in tmp_path.glob("*/vectors.f32") if p.stat().st_size == 2 * 64 * 8])
    finally:
        builder.kill()
        builder.wait()
    (tmp_path / "hang").unlink()
    sys.path.insert(0, str(tmp_path))
    assert build(tmp_path, texts, embedder="killed_embedder:embed").facts.passages == 300
    assert sum(importlib.import_module("killed_embedder").calls) == 1 + 300 - 128
    assert not list(tmp_path.glob("index.*"))


def test_what_a_builder_left_of_another_corpus_is_thrown_away(tmp_path: Path) -> None:
    plugin = importlib.import_module(write_plugin(tmp_path, "other_corpus_embedder"))
    plugin.limit = 0
    with pytest.raises(PermanentError):
        build(tmp_path, embedder="other_corpus_embedder:embed_and_die")
    assert list(tmp_path.glob("index.building-*"))
    assert build(tmp_path, TEXTS[:3]).facts.passages == 3
    assert not list(tmp_path.glob("index.*"))


def test_a_builder_whose_lock_was_taken_away_writes_no_index(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl")
    taken = []

    def steal(what: str, _done: int, _total: int) -> None:
        if what == "indexing words" and not taken:
            taken.append(what)
            # As another builder does, who thinks that this one is dead.
            for left in tmp_path.glob("index.building-*"):
                left.rename(left.with_name("index.building-thief"))

    with pytest.raises((OSError, TransientError)):
        build_index(Order(tmp_path / "corpus.jsonl", tmp_path / "index"), steal)
    assert taken
    assert not (tmp_path / "index").exists()
    assert not build(tmp_path).was_there


def test_one_turn_at_a_time_and_the_waiting_say_for_whom(tmp_path: Path) -> None:
    told: list[str] = []

    class Enough(Exception):
        pass

    def tell(what: str, _done: int, _total: int) -> None:
        told.append(what)
        if len(told) == 2:
            raise Enough

    out = tmp_path / "index"
    with take_turn(out, nothing), pytest.raises(Enough), take_turn(out, tell):
        pytest.fail("two at once")
    assert str(os.getpid()) in told[0]
    with take_turn(out, nothing):
        assert list_names(tmp_path) == {"index.lock"}
    assert list_names(tmp_path) == set()


@pytest.mark.parametrize(
    ("texts", "order", "word"),
    [
        (TEXTS[:4], {}, "another corpus"),
        (TEXTS, {"analyzer": Analyzer.PLAIN}, "another analyzer"),
        (TEXTS, {"is_exact": False}, "another kind of vectors"),
    ],
)
def test_an_index_of_something_else_is_kept_unless_it_may_be_replaced(
    tmp_path: Path, texts: tuple[str, ...], order: dict[str, object], word: str
) -> None:
    first = build(tmp_path)
    with pytest.raises(UsageError, match=word):
        build(tmp_path, texts, **order)
    assert read_facts(tmp_path / "index") == first.facts
    assert build(tmp_path, texts, replaces=True, **order).facts.passages == len(texts)
    assert list_names(tmp_path) == {"corpus.jsonl", "index"}


def test_a_directory_that_is_no_index_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    build(tmp_path)
    (tmp_path / "index" / FACTS).unlink()
    with pytest.raises(UsageError, match="is no index"):
        build(tmp_path, replaces=True)
    assert (tmp_path / "index" / PASSAGES).exists()


def test_a_damaged_index_can_be_replaced_and_is_not_taken_for_whole(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "index" / FACTS).write_text("{")
    with pytest.raises(UsageError, match=r"damaged.*--replace"):
        build(tmp_path)
    assert not build(tmp_path, replaces=True).was_there


def test_a_corpus_with_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"contents": "a"}\n{"id": 1}\n')
    with pytest.raises(UsageError, match=r"corpus\.jsonl:2"):
        build_index(Order(tmp_path / "corpus.jsonl", tmp_path / "index"), nothing)
    assert list_names(tmp_path) == {"corpus.jsonl"}


@pytest.mark.parametrize(
    ("function", "word"),
    [
        ("embed_raggedly", "rows for|numbers"),
        ("embed_nothing", "a vector of length 0"),
        ("is_not_there", "is_not_there"),
        ("let_go", "is no function"),
    ],
)
def test_an_embedder_that_does_not_keep_its_word_is_named(tmp_path: Path, function: str, word: str) -> None:
    write_plugin(tmp_path, "odd_embedder")
    with pytest.raises((PermanentError, UsageError), match=word):
        build(tmp_path, embedder=f"odd_embedder:{function}")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("spec", ["/nowhere/at/all", "no-such-model"])
def test_an_embedder_that_is_not_there_is_named_before_anything_is_read(tmp_path: Path, spec: str) -> None:
    with pytest.raises((UsageError, PermanentError), match=spec):
        build(tmp_path, embedder=spec)
    assert list_names(tmp_path) == {"corpus.jsonl"}


def test_a_byte_that_changed_is_found_by_the_check(tmp_path: Path) -> None:
    write_plugin(tmp_path, "checked_embedder")
    built = build(tmp_path, embedder="checked_embedder:embed")
    path = tmp_path / "index" / DENSE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match=DENSE):
        check_files(tmp_path / "index", built.facts, nothing)
    result = CliRunner().invoke(cli, ["index", "check", str(tmp_path / "index")])
    assert isinstance(result.exception, Damaged)


def test_the_command_builds_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.jsonl")
    run = CliRunner().invoke
    built = run(cli, ["index", "build", "corpus.jsonl", "--out", "index"], catch_exceptions=False)
    assert built.output.endswith(f"index: built, {len(TEXTS)} passages of corpus.jsonl, BM25\n")
    checked = run(cli, ["index", "check", "index"], catch_exceptions=False)
    assert checked.output.endswith(f"index: ok, {len(TEXTS)} passages of corpus.jsonl, BM25\n")
    nowhere = run(cli, ["index", "check", "nowhere"])
    assert isinstance(nowhere.exception, UsageError)


def test_everybody_whom_the_umask_lets_may_read_an_index(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        build(tmp_path)
    finally:
        os.umask(mask)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "index").rglob("*") if path.is_file()}
    assert modes == {0o644}
    assert json.loads((tmp_path / "index" / FACTS).read_text())["passages"] == len(TEXTS)


@pytest.mark.parametrize(
    ("total", "is_exact", "lists"),
    [
        (10, None, 0),
        (50_000, None, 0),
        (100_000, None, 1024),
        (21_000_000, None, 16384),
        (100_000, True, 0),
        (10, False, 1),
    ],
)
def test_the_number_of_lists_grows_with_the_root_of_the_corpus(total: int, is_exact: bool | None, lists: int) -> None:
    shape = choose_shape(total, is_exact)
    assert shape[0] == lists
    assert shape[1] <= max(16, lists // 32)
