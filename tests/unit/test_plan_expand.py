"""Placeholders: filled once, escaped once, and never read in what a value brought along."""

import random

import pytest

from retinue.plan.expand import PlaceholderError, expand, expand_known, find_placeholders

KEEP = frozenset({"port", "host", "node_dir"})
KNOWN = {"run_dir": "/runs/a", "train.nodelist": "n[1-2]", "replica": "judge/0"}
LATER = {"port": "8000", "host": "127.0.0.1", "node_dir": "/tmp/r"}

BOTH = [
    ("--port={port}", "--port={port}", "--port=8000"),
    ("{run_dir}/x", "/runs/a/x", "/runs/a/x"),
    ("{train.nodelist}", "n[1-2]", "n[1-2]"),
    ("{{port}}", "{{port}}", "{port}"),
    ("{{{port}}}", "{{{port}}}", "{8000}"),
    ("{{run_dir}}", "{{run_dir}}", "{run_dir}"),
    ("{{{run_dir}}}", "{{/runs/a}}", "{/runs/a}"),
    ('{"a": 1}', '{{"a": 1}}', '{"a": 1}'),
    ('{"a": {"dir": "{run_dir}"}}', '{{"a": {{"dir": "/runs/a"}}', None),
    ("a { b } c", "a {{ b }} c", "a { b } c"),
    ("{", "{{", "{"),
    ("{}", "{{}}", "{}"),
    ("{0}", "{{0}}", "{0}"),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "planned", "final"), BOTH)
def test_the_plan_fills_its_own_and_the_node_the_rest(text: str, planned: str, final: str | None) -> None:
    assert expand(text, KNOWN, KEEP) == planned
    if final is not None:
        assert expand(planned, LATER) == final


@pytest.mark.parametrize("value", ["/odd/{port}/dir", "{{", "}", "{", "}}", "{{port}}", "{run_dir}", "a{b}c{"])
@pytest.mark.parametrize("around", ["{}", "x{}y", "{{{{{}}}}}", "{{port}}{}{{port}}"])
def test_a_value_is_never_read_as_a_placeholder(value: str, around: str) -> None:
    text = around.format("{run_dir}")
    final = expand(expand(text, {"run_dir": value}, KEEP), LATER)
    assert final == around.format("\0").replace("{{", "{").replace("}}", "}").replace("{port}", "8000").replace(
        "\0", value
    )


def test_a_lone_brace_and_a_value_do_not_make_a_placeholder_together() -> None:
    planned = expand("{port{run_dir}", {"run_dir": "}"}, KEEP)
    assert expand(planned, LATER) == "{port}"


@pytest.mark.parametrize("keep", [frozenset(), KEEP])
def test_a_placeholder_nobody_can_fill_is_named(keep: frozenset[str]) -> None:
    with pytest.raises(PlaceholderError) as caught:
        expand("--port={prot}", KNOWN, keep)
    assert "cannot fill {prot}: there is " in str(caught.value)
    assert "{run_dir}" in str(caught.value)
    assert ("{port}" in str(caught.value)) is bool(keep)


def test_without_anything_to_fill_the_message_says_so() -> None:
    with pytest.raises(PlaceholderError, match="no placeholder here"):
        expand("{a}", {})


def test_text_of_escaped_braces_survives_any_number_of_plan_steps() -> None:
    chance = random.Random(7)
    for _ in range(1000):
        plain = "".join(chance.choice(["{", "}", "a", "port", " "]) for _ in range(chance.randint(0, 10)))
        text = plain.replace("{", "{{").replace("}", "}}")
        once = expand(text, KNOWN, KEEP)
        assert expand(once, KNOWN, KEEP) == once
        assert expand(once, LATER) == plain


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("{train.nodelist}", "n[1-2]"),
        ("-w{train.nodelist}", "-wn[1-2]"),
        ("{{train.nodelist}}", "{train.nodelist}"),
        ("echo ${HOME}", "echo ${HOME}"),
        ("awk '{print $1}'", "awk '{print $1}'"),
        ('{"a":{"b":1}}', '{"a":{"b":1}}'),
        ('{"n":{"list":"{train.nodelist}"}}', '{"n":{"list":"n[1-2]"}}'),
        ('{"n":{train.nodelist}}', '{"n":n[1-2]}'),
        ("{port}", "{port}"),
        ("{{", "{{"),
    ],
)
def test_the_trainers_own_braces_are_left_alone(text: str, final: str) -> None:
    assert expand_known(text, KNOWN) == final


def test_escaped_names_are_no_placeholders() -> None:
    assert find_placeholders("{a} {{b}} {c.d}{{{e}}} {1} {") == ("a", "c.d", "e")
