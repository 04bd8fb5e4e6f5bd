"""An index that is not what was built is refused at the start, in words; never searched."""

import os
from pathlib import Path

import pytest
from retrieval_scenes import build, open_built, write_plugin

from retinue.errors import PermanentError
from retinue.retrieval.passages import Damaged
from retinue.retrieval.records import DENSE, FACTS, LEXICAL, PASSAGES, PLACES

FILES = [PASSAGES, PLACES, DENSE, FACTS, "meta.json", "*.term", "*.idx", "*.fast"]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    write_plugin(tmp_path, "damaged_embedder")
    build(tmp_path, embedder="damaged_embedder:embed")
    return tmp_path / "index"


def refuse(whole: Path) -> str:
    with pytest.raises(Damaged) as caught:
        open_built(whole.parent)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short_is_named(whole: Path, name: str) -> None:
    [path] = whole.rglob(name)
    os.truncate(path, path.stat().st_size // 2)
    assert path.name in refuse(whole)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_other_bytes_is_not_searched(whole: Path, name: str) -> None:
    [path] = whole.rglob(name)
    path.write_bytes(bytes(range(1, 256)) * (path.stat().st_size // 255) + b"x" * (path.stat().st_size % 255))
    assert str(whole) in refuse(whole)


@pytest.mark.parametrize("name", [*(name for name in FILES if name != FACTS), LEXICAL])
def test_a_file_that_is_not_there_is_named(whole: Path, name: str) -> None:
    [path] = whole.rglob(name)
    path.rename(whole.parent / "elsewhere")
    assert path.name in refuse(whole)


def test_no_index_at_all_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="there is no index; retinue index build"):
        open_built(tmp_path)


def test_an_index_of_another_version_says_so(tmp_path: Path) -> None:
    build(tmp_path)
    path = tmp_path / "index" / FACTS
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(PermanentError, match="format 2, not 1"):
        open_built(tmp_path)
