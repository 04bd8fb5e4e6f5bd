"""Keys of `top`: sequences that arrive in pieces, and what each key changes."""

import pytest

from retinue.cli.top_keys import HELP, QUIT, Shown, parse_keys, press
from retinue.cli.top_sight import NODES, SERVICES, SORTS, Choice

SHOWN = Shown(["corpus", "judge", "judge/0", "judge/1"], ["node001", "node002", "node003"], page=2)


def press_all(keys: str | list[str], choice: Choice | None = None, shown: Shown = SHOWN) -> tuple[Choice, list[str]]:
    choice = choice or Choice()
    orders = []
    for key in keys:
        choice, order = press(choice, key, shown)
        orders.append(order)
    return choice, [order for order in orders if order]


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("jk?", ["j", "k", "?"]),
        ("\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["page up", "page down", "home", "end", "home", "end"]),
        ("\r\n\t\x7f", ["enter", "enter", "tab", "back"]),
        ("\x1b[1;5Cq", ["q"]),
        ("\x1b[200~pasted", list("pasted")),
        ("\x00\x13é", ["é"]),
        ("\x1b\x1b[A", ["esc", "up"]),
        ("\x1bq", ["esc", "q"]),
    ],
)
def test_what_a_terminal_sends_becomes_keys(typed: str, keys: list[str]) -> None:
    assert parse_keys(typed) == (keys, "")


@pytest.mark.parametrize("whole", ["\x1b[A", "\x1bOB", "\x1b[5~", "\x1b[1;5C"])
def test_a_sequence_that_arrives_in_pieces_is_the_same_key(whole: str) -> None:
    for cut in range(1, len(whole)):
        keys, rest = parse_keys("j" + whole[:cut])
        assert (keys, rest) == (["j"], whole[:cut])
        assert parse_keys(rest + whole[cut:]) == parse_keys(whole)


def test_an_escape_alone_is_a_key_when_nothing_follows() -> None:
    assert parse_keys("\x1b") == ([], "\x1b")
    assert parse_keys("\x1b", is_all=True) == (["esc"], "")


def test_moving_ends_at_both_ends_and_pages() -> None:
    assert press_all("j")[0].service == "judge"
    assert press_all("jjjjjjj")[0].service == "judge/1"
    assert press_all("kkk")[0].service == "corpus"
    assert press_all("Gk")[0].service == "judge/0"
    assert press_all("Gg")[0].service == "corpus"
    assert press_all(["page down", "up"])[0].service == "judge"
    assert press_all(["end", "page up"])[0].service == "judge"


def test_tab_moves_among_nodes_and_keeps_the_service() -> None:
    choice, _ = press_all(["j", "tab", "j", "j"])
    assert (choice.pane, choice.service, choice.node) == (NODES, "judge", "node003")
    assert press_all(["enter", "tab"], choice)[0].pane == SERVICES
    assert press_all(["enter"], choice)[0].focus == ""


@pytest.mark.parametrize("back", ["esc", "enter", "f", "back"])
def test_a_focus_is_entered_and_left(back: str) -> None:
    choice, _ = press_all(["j", "j", "f"])
    assert choice.focus == "judge/0"
    assert press_all("j", choice)[0] == choice
    assert press_all([back], choice)[0].focus == ""


def test_a_restart_is_ordered_by_yes_alone() -> None:
    assert press_all("jjry")[1] == ["restart judge/0"]
    assert press_all("ry")[1] == ["restart corpus"]
    for other in ("n", "q", "j", "enter", "esc", "r"):
        choice, orders = press_all(["r", other])
        assert (choice.asks, orders) == ("", [])
    choice, _ = press_all(["f", "r"])
    assert (choice.focus, choice.asks) == ("corpus", "corpus")


def test_a_restart_asks_nothing_where_nothing_is_selected() -> None:
    choice, orders = press_all(["tab", "r", "y"])
    assert (choice.asks, orders) == ("", [])
    assert press_all("r")[0].asks == "corpus"
    assert press_all("ry", shown=Shown([], []))[1] == []


def test_keys_on_an_empty_screen_change_nothing_that_breaks() -> None:
    choice, _ = press_all(["j", "G", "f", "tab", "k", "page down"], shown=Shown([], []))
    assert (choice.service, choice.node, choice.focus) == ("", "", "")


def test_a_replica_that_is_gone_leaves_the_selection_at_its_service() -> None:
    choice = Choice(service="judge/7")
    assert press_all("f", choice)[0].focus == "judge"
    assert press_all("j", choice)[0].service == "judge/0"
    assert press_all("f", Choice(service="gone"))[0].focus == "corpus"


def test_sorting_goes_round() -> None:
    assert [press_all("s" * count)[0].sort for count in range(len(SORTS) + 1)] == [*SORTS, SORTS[0]]


def test_all_or_only_the_troubled_is_the_other_of_what_is_shown() -> None:
    assert press_all("a")[0].shows_all is False
    assert press_all("a", shown=Shown(["x"], [], is_all=False))[0].shows_all is True


def test_help_is_left_by_any_key_and_the_key_does_nothing_else() -> None:
    choice, _ = press_all("?")
    assert choice.shows_help
    assert press_all("q", choice) == (Choice(), [])


def test_q_quits_and_an_answer_is_shown_until_the_next_key() -> None:
    assert press_all("q") == (Choice(), [QUIT])
    assert press_all("j", Choice(said="restarting judge"))[0].said == ""


def test_every_letter_of_the_help_does_something() -> None:
    letters = {word.strip(",") for keys, _ in HELP for word in keys.split() if len(word.strip(",")) == 1}
    for letter in letters - {"k", "g"}:
        assert press(Choice(), letter, SHOWN) != (Choice(), ""), letter
    for letter in "kg":
        assert press(Choice(service="judge"), letter, SHOWN)[0].service == "corpus"
