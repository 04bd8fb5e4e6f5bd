"""What is hidden and what is bound back; and text that must fit."""

import sys
from pathlib import Path

import pytest

from retinue.checks.jail.view import View, build_view
from retinue.checks.judging import cut_text
from retinue.terms.record import to_json


def test_a_hidden_place_inside_a_shown_one_inside_a_hidden_one_stays_apart() -> None:
    view = View(("/home", "/home/u/p/run"), ("/home/u/p", "/home/u/p/lib", "/home/u/p/run/plugins", "/usr/lib"))
    assert view.find_bound_back() == ["/home/u/p", "/home/u/p/run/plugins"]
    assert view.find_shown_below("/home") == ["/home/u/p"]


def test_names_that_only_begin_alike_are_not_below_each_other() -> None:
    view = View(("/home",), ("/home2/u", "/homely"))
    assert view.find_bound_back() == []


def test_the_root_is_never_hidden_even_as_somebodys_home() -> None:
    assert "/" not in build_view([], {"HOME": "/"}).hidden


def test_every_variable_that_names_a_private_place_hides_it(tmp_path: Path) -> None:
    names = ("HOME", "TMPDIR", "SLURM_TMPDIR", "RETINUE_RUN_DIR", "RETINUE_NODE_DIR", "RETINUE_TOKEN_FILE")
    places = {name: str(tmp_path / name) for name in names}
    hidden = build_view(["/given"], places).hidden
    assert set(places.values()) <= set(hidden)
    assert "/given" in hidden


def test_what_python_needs_is_shown_and_what_is_both_is_hidden(tmp_path: Path) -> None:
    view = build_view([str(tmp_path)], {"PYTHONPATH": f"{tmp_path}:/nowhere", "LD_LIBRARY_PATH": str(tmp_path.parent)})
    assert str(tmp_path) not in view.shown
    assert "/nowhere" not in view.shown
    assert str(tmp_path.parent) in view.shown
    assert sys.prefix in view.shown
    assert str(Path(pytest.__file__).parent) in view.shown


@pytest.mark.parametrize("text", ["", "plain", "x" * 10_000, "\x01" * 10_000, "é" * 5000, "\ud800" * 5000, '"' * 9000])
@pytest.mark.parametrize("limit", [300, 1000, 4096])
def test_text_is_cut_to_what_fits_as_json(text: str, limit: int) -> None:
    cut = cut_text(text, limit)
    assert len(to_json(cut)) <= limit
    assert cut or not text
    if len(text) * 6 < limit - 256:
        assert cut == text.encode("utf-8", "backslashreplace").decode()
