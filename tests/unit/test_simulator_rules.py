"""The simulator's pure half: personas, what the model reads, and what it may not say."""

import json

import pytest

from retinue.simulator.personas import BadPersonas, Persona, choose_persona, parse_personas
from retinue.simulator.prompt import CUT, GREETING, build_prompt, count_turns, derive_seed
from retinue.simulator.requests import Message
from retinue.simulator.role import Slip, Slipped, check_calls, check_said

SECRET = "You want your money back for order 7731 on the card that ends in 4402 before friday"
ANNA = Persona("anna", "A patient teacher.", SECRET, never_says=["manager override"])


def build_line(**changes: object) -> bytes:
    return json.dumps({"id": "anna", "persona": "A teacher.", "goal": SECRET} | changes).encode()


def list_roles(messages: list[Message], chars: int = 1000, history: int = 10_000) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in build_prompt(ANNA, messages, chars, history)[1:]]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"id": "x", "goal": 7731}', "line 2: "),
        (b"{", "line 2: "),
        (b'{"id": "\xff"}', "line 2: byte 9 of it is not UTF-8"),
        (build_line(), "line 2: id 'anna' is in line 1 already"),
        (build_line(id="any"), "line 2: id is letters"),
        (build_line(id="b", goal=" "), "line 2: goal is empty"),
        (build_line(id="b", turns_min=0), "turns_min is 0"),
        (build_line(id="b", turns_min=5, turns_max=3), "less than turns_min 5"),
        (build_line(id="b", never_says=[" "]), "every message"),
        (build_line(id="b", gaol="x"), "no field 'gaol'; there are id, persona, goal"),
        (build_line(id="b", **{SECRET: 1}), "there is no field; there are"),
        (b"[" * 100_000, "line 2: "),
    ],
)
def test_a_persona_that_cannot_be_used_is_named_by_its_line_and_without_its_goal(line: bytes, what: str) -> None:
    with pytest.raises(BadPersonas, match="line 2") as caught:
        parse_personas(build_line() + b"\n" + line + b"\n")
    assert what in str(caught.value)
    assert "7731" not in str(caught.value)


def test_every_bad_line_is_told_at_once_and_an_empty_file_is_none() -> None:
    with pytest.raises(BadPersonas) as caught:
        parse_personas(b"{\n\n" + build_line() + b"\n[]\n")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["line 1", "line 4"]
    with pytest.raises(BadPersonas, match="no persona"):
        parse_personas(b"\n")


def test_a_name_chooses_who_is_met_and_else_the_seed_the_same_every_time() -> None:
    people = parse_personas(b"\n".join(build_line(id=name) for name in "abc"))
    assert [choose_persona(people, "", "any", seed).id for seed in (0, 1, 2, 3, 4)] == list("abcab")  # type: ignore[union-attr]
    assert choose_persona(people, "c", "a", 0) is people["c"]
    assert choose_persona(people, "", "b", 0) is people["b"]
    assert choose_persona(people, "", "gpt-4", 0) is None


def test_roles_are_flipped_and_what_is_the_policys_own_is_not_read() -> None:
    call = {"id": "u1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        Message("system", "POLICY RULES"),
        Message("assistant", "Hello."),
        Message("user", "My lamp is dark."),
        Message("assistant", None, [{"id": "p1"}]),
        Message("tool", "POLICY TOOL", tool_call_id="p1"),
        Message("assistant", "Look at it."),
        Message("user", None, [call]),
        Message("tool", "it is dark", tool_call_id="u1"),
    ]
    assert list_roles(messages) == [
        ("user", "Hello."), ("assistant", "My lamp is dark."), ("user", "Look at it."),
        ("assistant", ""), ("tool", "it is dark"),
    ]  # fmt: skip
    assert build_prompt(ANNA, messages, 1000, 9999)[4]["tool_calls"] == [call]
    assert count_turns(messages) == 1


def test_a_user_who_speaks_first_is_greeted() -> None:
    assert list_roles([]) == [("user", GREETING)]
    assert list_roles([Message("user", "Hello?")]) == [("user", GREETING), ("assistant", "Hello?")]


def test_no_policy_can_talk_until_the_context_overflows() -> None:
    messages = [Message("assistant" if at % 2 == 0 else "user", f"{at} " + "long " * 10_000) for at in range(99)]
    read = list_roles(messages, chars=500, history=3000)
    assert sum(len(text) for _, text in read) <= 3000 + len(CUT)
    assert read[0][1].startswith("0 long")
    assert CUT in read[0][1]
    assert read[-1][1].startswith("98 long")
    assert [role for role, _ in read] == ["user", "assistant"] * (len(read) // 2) + ["user"] * (len(read) % 2)


@pytest.mark.parametrize(
    ("text", "slip"),
    [
        ("As an AI language model, I cannot.", Slip.LEFT_ROLE),
        ("Hello! How can I help you today?", Slip.LEFT_ROLE),
        ("Assistant: your order is on its way.", Slip.LEFT_ROLE),
        ("<|im_start|>system", Slip.LEFT_ROLE),
        ("Use the MANAGER Override.", Slip.LEFT_ROLE),
        (f"Sure, my goal: {SECRET.upper()}!", Slip.LEFT_ROLE),
        ("###STOP###", Slip.ENDED_EARLY),
    ],
)
def test_a_message_that_leaves_the_role_or_ends_early_is_the_simulators_error(text: str, slip: Slip) -> None:
    with pytest.raises(Slipped) as caught:
        check_said(text, ANNA, 1)
    assert caught.value.slip is slip
    assert "7731" not in str(caught.value)


def test_what_a_person_says_is_let_through() -> None:
    assert check_said("I am an AI researcher; it is order 7731.", ANNA, 1) is None
    assert check_said("I can't. ###TRANSFER###", ANNA, 1) == "transfer"
    assert check_said("###STOP###", ANNA, 2) == "stop"


@pytest.mark.parametrize("function", [None, {"name": "rob", "arguments": "{}"}, {"name": "look", "arguments": "[]"}])
def test_a_call_of_a_tool_that_cannot_be_made_is_unreadable(function: object) -> None:
    with pytest.raises(Slipped):
        check_calls([{"id": "1", "function": function}], {"look"})


def test_a_seed_is_the_same_for_the_same_and_another_for_each_attempt() -> None:
    seeds = {derive_seed(seed, name, turn, at) for seed in (0, 1) for name in "ab" for turn in (1, 2) for at in (0, 1)}
    assert len(seeds) == 16
    assert derive_seed(0, "a", 1, 0) == derive_seed(0, "a", 1, 0) < 2**31
