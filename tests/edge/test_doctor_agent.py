"""The agent is asked what its node is like, and sees a setting of the host change."""

import os
from pathlib import Path

import pytest
from agent_doubles import wait_for
from agent_stage import Stage, open_stage

from retinue.channel.messages import AskFacts, NodeFacts, NodeNote
from retinue.doctor.records import Facts
from retinue.node import facts_order, host_watch
from retinue.terms.record import from_json, to_json


def find_facts(stage: Stage, question: int) -> NodeFacts | None:
    return next((m for m in stage.controller.said if isinstance(m, NodeFacts) and m.question == question), None)


def find_notes(stage: Stage) -> list[NodeNote]:
    return [m for m in stage.controller.said if isinstance(m, NodeNote) and m.role == host_watch.ROLE]


async def test_the_answer_holds_this_nodes_facts_and_leaves_no_file(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.controller.order(AskFacts(7))
        said = await wait_for(lambda: find_facts(stage, 7), "facts")
        assert said.error == ""
        facts = from_json(to_json(said.facts), Facts)
        assert facts.kernel == os.uname().release
        assert said.came_utc <= facts.begun_utc <= facts.ended_utc <= said.gave_utc
        assert not [name for name in os.listdir(stage.join.node_dir) if name.startswith("facts-")]


async def test_probes_that_hang_are_killed_and_the_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_order, "LIMIT_S", 0.0)
    async with open_stage(tmp_path) as stage:
        stage.controller.order(AskFacts(1))
        said = await wait_for(lambda: find_facts(stage, 1), "an answer")
        assert "did not end within" in said.error
        assert said.facts == {}


async def test_two_questions_at_once_get_two_answers(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.controller.order(AskFacts(1))
        stage.controller.order(AskFacts(2))
        for question in (1, 2):
            said = await wait_for(lambda question=question: find_facts(stage, question), f"answer {question}")  # type: ignore[misc]
            assert (said.error, bool(said.facts)) == ("", True)


async def test_a_setting_that_changes_is_told_once_with_what_it_was_and_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sys"
    (root / "kernel").mkdir(parents=True)
    (root / "kernel" / "core_pattern").write_text("core\n")
    monkeypatch.setattr(host_watch, "ROOT", root)
    monkeypatch.setattr(host_watch.watch_settings, "__defaults__", (0.01,))
    async with open_stage(tmp_path) as stage:
        await wait_for(lambda: Path(stage.join.node_dir, "host-settings.json").exists(), "baseline")
        assert find_notes(stage) == []
        (root / "kernel" / "core_pattern").write_text("|/tmp/get-out\n")
        [note] = await wait_for(lambda: find_notes(stage) or None, "security note")
        assert note.what == "HostSettingChanged kernel.core_pattern"
        assert "'core'" in note.reason
        assert "'|/tmp/get-out'" in note.reason


async def test_a_change_while_there_was_no_controller_and_another_note_are_both_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sys"
    (root / "kernel").mkdir(parents=True)
    names = ("core_pattern", "modprobe")
    for name in names:
        (root / "kernel" / name).write_text("before\n")
    monkeypatch.setattr(host_watch, "ROOT", root)
    monkeypatch.setattr(host_watch.watch_settings, "__defaults__", (0.01,))
    async with open_stage(tmp_path) as stage:
        await wait_for(lambda: Path(stage.join.node_dir, "host-settings.json").exists(), "baseline")
        stage.controller.disconnect()
        for name in names:
            (root / "kernel" / name).write_text("after\n")
        kept = stage.agent._outbox._kept
        await wait_for(lambda: len(kept) >= 2 or None, "both kept")
        stage.controller.connect()
        found = await wait_for(lambda: find_notes(stage) if len(find_notes(stage)) == 2 else None, "both told")
        assert {note.what for note in found} == {f"HostSettingChanged kernel.{name}" for name in names}
