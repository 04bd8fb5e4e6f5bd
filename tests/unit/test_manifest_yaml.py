"""YAML's own traps: nothing is guessed, nothing explodes, and every refusal has its line."""

import pytest
import yaml

from retinue.errors import ManifestError
from retinue.manifest import compose
from retinue.manifest.load import check_manifest, load_manifest

HEAD = "retinue: 1\nrun: {name: x}\n"


def findings(text: str) -> list[str]:
    return [finding.render("m") for finding in check_manifest(text)]


@pytest.mark.parametrize(
    "word", ["22:22", "010", "no", "1:30:00", "1.10", "0x10", "~", "null", "on", "2026-01-01", "="]
)
def test_a_word_that_yaml_takes_for_something_else_stays_text_where_text_is_wanted(word: str) -> None:
    manifest = load_manifest(f"{HEAD}services: {{a: {{command: [run, {word}], env: {{X: {word}}}}}}}\n", "m")
    assert manifest.services["a"].command == ("run", word)
    assert manifest.services["a"].env == {"X": word}


@pytest.mark.parametrize("word", ["22:22", "010", "no", "1:30:00", "1.10", "0x10", "~", "null", "on"])
@pytest.mark.parametrize("key", ["replicas", "port_reuse", "okay_delay"])
def test_the_same_word_is_a_finding_where_a_number_a_switch_or_a_duration_is_wanted(key: str, word: str) -> None:
    found = findings(f"{HEAD}services: {{a: {{command: [run], {key}: {word}}}}}\n")
    assert len(found) == 1
    assert found[0].startswith(f"m:3:{34 + len(key)}: services.a.{key}: ")
    assert repr(word) in found[0]


def test_quoted_and_plain_numbers_are_the_same_number() -> None:
    texts = [f"{HEAD}services: {{a: {{command: [run], replicas: {four}}}}}\n" for four in ("4", "'4'", '"4"')]
    assert [load_manifest(text, "m").services["a"].replicas for text in texts] == [4, 4, 4]


BROKEN = [
    ("", ["m: the file is empty; a manifest begins with 'retinue: 1'"]),
    ("# only a comment\n", ["m: the file is empty; a manifest begins with 'retinue: 1'"]),
    ("- a\n- b\n", ["m:1:1: the file is a list, not a mapping; a manifest begins with 'retinue: 1'"]),
    ("just words\n", ["m:1:1: the file is text, not a mapping; a manifest begins with 'retinue: 1'"]),
    (
        "retinue: 1\nrun:\n\tname: x\n",
        [
            "m:3:1: cannot read YAML: a tab or reserved character begins a value; "
            "indent with spaces; put text that begins with @, ` or % in quotes"
        ],
    ),
    (
        "retinue: 1\nrun: {name: a: b}\nx: y: z\n",
        ["m:2:14: cannot read YAML: did not find expected ',' or '}'"],
    ),
    (
        "retinue: 1\nrun: name: x\n",
        [
            "m:2:10: cannot read YAML: a second ': ' on this line; "
            "put text that holds ': ' in quotes, and check the indentation"
        ],
    ),
    ("retinue: 1\n---\nretinue: 1\n", ["m:2:1: a second YAML document begins here; keep one per file"]),
    ("a: \x07\n", ["m:1:4: holds the character U+0007, which YAML does not allow; is this a text file?"]),
    ("a: b\nc: \ud800\n", ["m:2:4: holds the character U+D800, which YAML does not allow; is this a text file?"]),
    ("a: *nowhere\n", ["m:1:4: cannot read YAML: found undefined alias"]),
    (
        f"{HEAD}services: {{a: {{command: !!python/tuple [x], cwd: !mine y}}}}\n",
        [
            "m:3:25: the tag '!!python/tuple' is not allowed; remove the tag; the field says the type",
            "m:3:50: the tag '!mine' is not allowed; remove the tag; the field says the type",
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_a_text_that_is_no_manifest_gives_its_line_and_nothing_else(text: str, expected: list[str]) -> None:
    assert findings(text) == expected


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistake() -> None:
    text = f"\ufeff{HEAD}services: {{a: {{command: [x]}}}}\n".replace("\n", "\r\n")
    assert load_manifest(text, "m").services["a"].command == ("x",)


def test_of_a_doubled_key_the_first_counts_for_the_rest_of_the_checks() -> None:
    text = f"{HEAD}services:\n  a:\n    command: [x]\n    replicas: 2\n    replicas: many\n    min_ready: 3\n"
    assert findings(text) == [
        "m:7:5: services.a: key 'replicas' is given twice; line 6 has the first, which counts",
        "m:8:16: services.a.min_ready: must be at most 2, the number of replicas, not 3; lower it, or raise replicas",
    ]


def test_a_doubled_service_is_one_finding_at_the_second() -> None:
    text = f"{HEAD}services:\n  a: {{command: [x]}}\n  a: {{command: [y], replicas: no}}\n"
    assert findings(text) == ["m:5:3: services: key 'a' is given twice; line 4 has the first, which counts"]


def test_a_merge_key_is_refused_and_an_alias_of_a_whole_value_works() -> None:
    text = f"{HEAD}services:\n  a: &a {{command: [x]}}\n  b: {{<<: *a, cwd: /}}\n"
    assert findings(text) == [
        "m:5:3: services.b: has neither 'template' nor 'command'; write one of them",
        "m:5:7: services.b: the merge key '<<' is not supported; write the keys out, or use a template",
    ]
    aliased = load_manifest(f"{HEAD}services:\n  a: &a {{command: [x]}}\n  b: *a\n", "m")
    assert aliased.services["a"] == aliased.services["b"]


def test_aliases_of_aliases_are_bounded_before_they_fill_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    expected = "m: the file has more than 50000 values once its aliases are expanded; write less, or use a template"
    assert findings("\n".join(lines)) == [expected]


def test_a_value_that_holds_itself_is_refused() -> None:
    assert findings("a: &x {b: *x}\n") == [
        "m: the file has more than 50000 values once its aliases are expanded; write less, or use a template"
    ]


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 50_000 + "x", "{a: " * 900 + "}" * 900])
def test_absurd_nesting_is_a_finding_and_not_a_crash(text: str) -> None:
    found = findings(text)
    assert len(found) == 1
    assert "nest" in found[0]


def test_keys_that_are_no_text_are_findings() -> None:
    found = findings(f"{HEAD}services: {{a: {{command: [x]}}, ? [l] : y}}\n")
    what = "a key is a list or a mapping; keys are text; a '{' that begins text needs quotes"
    assert found == [f"m:3:33: services: {what}"]


def test_a_report_of_thousands_is_cut_and_says_so() -> None:
    wrong = "".join(f"  s{n}: {{command: x}}\n" for n in range(500))
    with pytest.raises(ManifestError) as caught:
        load_manifest(f"{HEAD}services:\n{wrong}", "m")
    assert len(caught.value.findings) == 201
    assert caught.value.findings[-1].what == "300 more findings are not shown"


def test_without_the_c_parser_the_same_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{HEAD}services:\n  a:\n    command: [x, '', no]\n    cwd:\n    env: &e {{B: *e}}\n".replace("*e", "1")
    fast = compose.compose_tree(text)
    monkeypatch.setattr(compose, "LOADER", yaml.SafeLoader)
    slow = compose.compose_tree(text)
    assert (slow.data, slow.keys, slow.values, slow.findings) == (fast.data, fast.keys, fast.values, [])
    assert slow.data["services"]["a"] == {"command": ["x", "", "no"], "cwd": None, "env": {"B": "1"}}
