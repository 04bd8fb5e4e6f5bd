"""What a screen of `top` says, whole: at two sizes, at every size, and whatever services print."""

import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from retinue.cli.top_rows import divide_height, find_window, get_key
from retinue.cli.top_sight import NODES, SORTS, Choice, LogTail
from retinue.cli.top_view import Scene, compose, compose_plain, fit, format_span
from retinue.journal.status import JournalStatus, Status
from retinue.journal.verdict import Verdict
from retinue.terms.record import replace
from support.top_scenes import EVENTS, NOW, TROUBLED, build_large, build_node, build_replica, build_scene, build_status

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r\n\tend"
VERDICT = Verdict("0123456789ab", "kolibri-rl", 0, "trainer", "the trainer ended", 0, NOW - 900, NOW - 2, "true")


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.journal.events.time.localtime", time.gmtime)


def read_screen(scene: Scene, width: int = 80, height: int = 24) -> list[str]:
    return [line.text.rstrip() for line in compose(scene, width, height)]


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("top_80x24", Choice()),
        ("top_160x50", Choice()),
        ("top_80x24_phase", Choice(sort="phase", service="judge/1")),
        ("top_80x24_help", Choice(shows_help=True)),
        ("top_80x24_log", Choice(focus="judge/1")),
    ],
)
def test_a_screen_says_all_of_it_in_its_place(name: str, choice: Choice) -> None:
    width, height = map(int, name.split("_")[1].split("x"))
    log = LogTail("judge/1", ("loading weights", "Traceback: no weights at /models"), "launch-4.log")
    said = read_screen(build_scene(choice=choice, log=log), width, height)
    assert "\n".join(said) + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_a_plain_snapshot_has_every_row_and_no_keys() -> None:
    said = compose_plain(build_scene(), 100)
    assert "\n".join(said) + "\n" == (GOLDEN / "top_plain.txt").read_text()


WILD = replace(
    build_status(
        [([build_replica(f"{HOSTILE}日本語/{index}", HOSTILE, HOSTILE * 50)], 10**12) for index in range(3)],
        [build_node(HOSTILE, "lost", cause=HOSTILE), build_node("n" * 300, HOSTILE, requests=10**15, held=10**9)],
    ),
    name=HOSTILE,
    phase=HOSTILE,
    cause=HOSTILE,
    ended_by="signal",
    warnings=(HOSTILE,) * 9,
    journal=JournalStatus(9.0, 1, HOSTILE),
)


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (33, 7), (20, 1), (5, 3), (300, 100), (81, 0)])
@pytest.mark.parametrize("choice", [Choice(), Choice(pane=NODES), Choice(focus=f"{HOSTILE}/1"), Choice(said=HOSTILE)])
@pytest.mark.parametrize("status", [TROUBLED, WILD, None])
def test_every_line_is_as_wide_as_the_screen_and_drives_no_terminal(
    size: tuple[int, int], choice: Choice, status: Status | None
) -> None:
    log = LogTail(f"{HOSTILE}/1", (HOSTILE, "x" * 10_000, "\x1b[31mred\x1b[0m", "日本" * 99), HOSTILE)
    events = (*EVENTS, replace(EVENTS[0], subject=HOSTILE, reason=HOSTILE, detail=HOSTILE))
    scene = build_scene(status, choice, events=events, log=log, death=HOSTILE, trouble=HOSTILE)
    lines = compose(scene, *size)
    assert len(lines) == size[1]
    assert {cell_len(line.text) for line in lines} <= {max(20, size[0])}
    assert all(line.text.isprintable() for line in lines)
    assert all(line.isprintable() for line in compose_plain(scene, size[0]))


def test_hostile_log_lines_are_shown_inert_and_colours_are_dropped() -> None:
    log = LogTail("judge", ("\x1b[1;31mred\x1b[0m\tand", "\x1b]52;c;aGk=\x07"), "")
    said = "\n".join(read_screen(build_scene(choice=Choice(focus="judge"), log=log)))
    assert "red     and" in said
    assert "\\x1b]52;c;aGk=\\x07" in said


@pytest.mark.parametrize("index", [0, 1, 17, 4_999, 10_009])
def test_the_selected_row_of_ten_thousand_is_on_the_screen(index: int) -> None:
    choice = Choice(shows_all=True)
    scene = build_scene(build_large(), choice)
    selected = get_key(scene.rows[index])
    lines = compose(replace(scene, choice=replace(choice, service=selected)), 80, 24)
    [line] = [line for line in lines if line.style == "selected"]
    assert line.text.split()[:2] == [">", selected]
    assert any("of 10010)" in line.text for line in lines)


def test_the_selected_node_of_a_thousand_is_on_the_screen() -> None:
    lines = compose(build_scene(build_large(), Choice(pane=NODES, node="node0777")), 80, 24)
    [line] = [line for line in lines if line.style == "selected"]
    assert "node0777" in line.text
    assert any("nodes 1000 joined" in line.text for line in lines)


def test_of_many_replicas_only_those_that_are_not_well_are_shown_at_first() -> None:
    keys = [get_key(row) for row in build_scene(build_large()).rows]
    assert len(keys) == 10 + 200
    assert keys[:3] == ["judge0", "judge0/7", "judge0/57"]
    assert len(build_scene(choice=Choice(shows_all=False)).rows) == 4 + 2


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_has_every_row_with_replicas_below_their_service(sort: str) -> None:
    keys = [get_key(row) for row in build_scene(choice=Choice(sort=sort)).rows]
    assert len(keys) == len(set(keys)) == 10
    service = ""
    for key in keys:
        service = key if "/" not in key else service
        assert key.split("/")[0] == service
    firsts = {"manifest": "corpus", "phase": "judge", "restarts": "judge", "in flight": "judge", "name": "corpus"}
    assert keys[0] == firsts[sort]
    if sort == "phase":
        assert keys[:3] == ["judge", "judge/1", "judge/3"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"verdict": VERDICT}, "over: trainer: the trainer ended (exit code 0, clean true)"),
        ({"verdict": replace(VERDICT, clean="unknown"), "death": ""}, "clean unknown"),
        ({"death": "the run is dead"}, "the run is dead"),
        ({"age_s": 31.0}, "this snapshot is 31 s old"),
        ({"trouble": "cannot read x: Stale file handle"}, "Stale file handle"),
    ],
)
def test_what_is_wrong_or_over_stands_above_everything(fields: dict[str, object], word: str) -> None:
    assert word in "\n".join(read_screen(build_scene(**fields))[2:4])
    assert word in "\n".join(compose_plain(build_scene(**fields), 80))


def test_a_run_that_is_over_is_not_called_old_and_its_clock_stands_still() -> None:
    said = read_screen(build_scene(verdict=VERDICT, age_s=9_999.0))
    assert "old" not in "\n".join(said)
    assert "up 01:23:43" in said[0]
    assert "left" not in said[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": replace(VERDICT, ended_utc=NOW)},
        {"death": "the run is dead"},
        {"status": replace(TROUBLED, phase="over")},
    ],
)
def test_no_duration_of_a_run_that_is_over_or_dead_grows(fields: dict[str, Any]) -> None:
    said = read_screen(build_scene(**fields, age_s=9_999.0), 160, 50)
    assert "was up 01:23:45" in said[0]
    assert "left" not in said[0]
    [row] = [line for line in said if "judge/1" in line and "node001" in line]
    assert "65s" in row.split()


def test_time_goes_on_between_two_readings_and_a_stall_is_said() -> None:
    scene = replace(build_scene(read_s=100.0), now_s=107.0, stalled_s=6.0)
    said = "\n".join(read_screen(scene))
    assert "up 01:23:52  left 1d 03:46:33" in said
    assert "this snapshot is 7 s old" in said
    assert "the run directory has not answered for 6 s" in said
    assert "not answered" not in "\n".join(read_screen(replace(scene, stalled_s=2.0)))


def test_before_the_first_snapshot_the_place_is_named() -> None:
    said = read_screen(build_scene(None))
    assert said[0].startswith("retinue  /runs/kolibri-4711")
    assert "no snapshot yet" in said[1]


@pytest.mark.parametrize("body", range(1, 60))
@pytest.mark.parametrize("counts", [(0, 0), (1, 1), (3, 500), (500, 3), (500, 500)])
@pytest.mark.parametrize("is_nodes", [False, True])
def test_the_height_is_given_out_whole_and_to_each_its_own(body: int, counts: tuple[int, int], is_nodes: bool) -> None:
    services, nodes, events = divide_height(body, *counts, is_nodes)
    assert services + nodes + events == body
    assert (services >= 1, nodes <= counts[1], events >= 0) == (True, True, True)
    if body >= 8:
        assert nodes >= min(2, counts[1])
        assert events >= 2


@pytest.mark.parametrize(("count", "size"), [(0, 5), (3, 5), (5, 5), (100, 7), (100, 1)])
def test_a_window_holds_the_selected_row_and_is_as_full_as_can_be(count: int, size: int) -> None:
    for selected in range(max(1, count)):
        first, end = find_window(selected, count, size)
        assert end - first == min(count, size)
        assert first <= selected < end or count == 0


@pytest.mark.parametrize(("span_s", "text"), [(-5, "00:00:00"), (59.9, "00:00:59"), (93_784, "1d 02:03:04")])
def test_a_span_is_told_as_a_clock_would(span_s: float, text: str) -> None:
    assert format_span(span_s) == text


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abc", 5, "abc  "), ("abcdef", 5, "ab..."), ("日本語", 5, "日..."), ("x", 0, ""), ("abc", 2, "..")],
)
def test_a_text_is_cut_or_filled_by_columns_not_by_characters(text: str, width: int, shown: str) -> None:
    assert fit(text, width) == shown


def test_the_page_shows_the_screen_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "top.md").read_text()
    assert (GOLDEN / "top_80x24.txt").read_text() in page
