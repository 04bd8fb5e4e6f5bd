"""The page that people read is what `decide` does."""

from pathlib import Path

from retinue.lifecycle.diagram import render_page

PAGE = Path(__file__).parents[2] / "docs" / "architecture-lifecycle.md"


def test_the_page_in_docs_is_what_decide_does_today():
    assert PAGE.read_text() == render_page(), "write it again: python -m retinue.lifecycle.diagram"
