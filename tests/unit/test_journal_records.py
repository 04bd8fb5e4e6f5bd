"""What people and programs read of a run: tolerant of broken files, safe to print, first cause first."""

from pathlib import Path

import pytest

from retinue.journal.events import EventLine, read_events, render_event
from retinue.journal.status import (
    JournalStatus,
    NodeStatus,
    ServiceStatus,
    Status,
    TrainerStatus,
    read_status,
    render_status,
)
from retinue.journal.verdict import NodeVerdict, ServiceVerdict, Verdict, explain_verdict, read_verdict, render_verdict
from retinue.terms.record import from_json, replace, to_json, to_pretty_json

LONG = "because " * 40
NODE = NodeStatus(
    name="node001",
    state="joined",
    rung="subreaper",
    weaker="user namespaces are off",
    agent_host_pid=1,
    keeper_host_pid=2,
    outer_pid=3,
    agent_starts=1,
    lag_s=0.0,
    load_per_cpu=0.5,
    memory_free_mib=1000,
    log_lines_lost=0,
    journal_stuck_s=0.0,
)
SERVICE = ServiceStatus("judge", "judge", 1, 2, 1, 3, 17, {"ready": 1, "backoff": 1}, "exited with code 1")
STATUS = Status(
    run_id="0123456789ab",
    name="kolibri",
    attempt=0,
    phase="running",
    updated_utc=1000.0,
    started_utc=900.0,
    end_utc=2000.0,
    ended_by="",
    cause="",
    controller_pid=1,
    controller_starts=1,
    gateway_port=20001,
    trainer=TrainerStatus("running", 77, None, None),
    services=(SERVICE,),
    replicas=(),
    nodes=(NODE,),
    journal=JournalStatus(0.0, 0, ""),
)
VERDICT = Verdict(
    run_id="0123456789ab",
    name="kolibri",
    attempt=0,
    ended_by="node_lost",
    cause="node001 was silent for 10 s",
    exit_code=5,
    started_utc=900.0,
    ended_utc=1900.0,
    clean="unknown",
    nodes={"node001": NodeVerdict("unknown", note="no report"), "node002": NodeVerdict("true", "namespace")},
)


def event(seq: int, subject: str = "judge/0", name: str = "Exited", after: str = "backoff", **more: str) -> EventLine:
    return EventLine(seq, 1000.0 + seq, subject, name, f"reason {seq}", "ready", after, **more)


def test_events_come_back_in_order_from_where_one_stopped_reading(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = [event(seq) for seq in range(5)]
    path.write_bytes(b"".join(to_json(line) + b"\n" for line in events))
    assert read_events(path) == events
    assert read_events(path, since_seq=2) == events[3:]
    assert read_events(tmp_path / "none") == []


def test_half_written_repeated_and_foreign_lines_cost_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    one, two, three = (to_json(event(seq)) for seq in (1, 2, 3))
    path.write_bytes(b"\n".join([one, two[:20], two, two, b"\xff\xfe", b"[]", b"", three[:-1]]))
    assert read_events(path) == [event(1), event(2)]


def test_a_restarted_controller_that_counts_again_hides_no_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(to_json(line) + b"\n" for line in (event(5), event(5, "judge/1"))))
    assert len(read_events(path)) == 2


def test_what_a_service_printed_cannot_drive_the_terminal() -> None:
    line = event(1, detail="\x1b]0;owned\x07\nplain é 中\t\x9b31m\r")
    text = render_event(replace(line, reason="\x1b[2J gone"))
    assert not {char for char in text if not char.isprintable()} - {"\n"}
    assert "plain é 中" in text
    assert "\\x1b[2J gone" in text


def test_status_fits_80_columns_whatever_it_holds() -> None:
    wild = replace(
        STATUS,
        ended_by="services",
        cause=LONG,
        services=(replace(SERVICE, name="s" * 63, reason=LONG), replace(SERVICE, reason="\x1b[31m" * 30)),
        nodes=(replace(NODE, name="n" * 60, cause=LONG),),
        warnings=(LONG,),
    )
    text = render_status(wild, 1001.0)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("because") >= 80
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (STATUS, "1/2"),
        (STATUS, "user namespaces are off"),
        (replace(STATUS, updated_utc=100.0), "old"),
        (replace(STATUS, journal=JournalStatus(31.0, 0, "")), "31 s"),
        (replace(STATUS, journal=JournalStatus(0.0, 0, "No space left on device")), "No space"),
        (replace(STATUS, nodes=(replace(NODE, log_lines_lost=12),)), "12 lines lost"),
    ],
)
def test_status_says_what_is_wrong(status: Status, word: str) -> None:
    assert word in " ".join(render_status(status, 1001.0).split())


def test_snapshots_survive_the_way_through_their_files(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(to_pretty_json(STATUS))
    (tmp_path / "verdict.json").write_bytes(to_pretty_json(VERDICT))
    assert read_status(tmp_path / "status.json") == STATUS
    assert read_verdict(tmp_path / "verdict.json") == VERDICT
    for content in (b"", b'{"run_id"', b"null"):
        (tmp_path / "broken.json").write_bytes(content)
        assert read_status(tmp_path / "broken.json") is None
        assert read_verdict(tmp_path / "broken.json") is None
    assert read_status(tmp_path / "none.json") is None
    assert read_verdict(tmp_path / "status.json" / "none") is None


def test_a_verdict_with_a_later_versions_fields_is_read() -> None:
    text = to_json(VERDICT)[:-1] + b',"a_later_field":[1]}'
    assert from_json(text, Verdict) == VERDICT


def test_why_names_the_first_cause_first_though_a_crash_loop_followed() -> None:
    events = [event(1, "corpus/0", "LivenessLost", "stopping", detail="Killed")]
    events += [event(seq) for seq in range(2, 300)]
    events += [event(300, "node001", "NodeLost", ""), event(301, "run", "StopBegun", "")]
    events += [event(302, "judge/1", after="failed")]
    text = explain_verdict(VERDICT, events)
    assert text[0].startswith("node_lost: node001 was silent")
    where = {subject: next(at for at, row in enumerate(text) if subject in row) for subject in ("corpus/0", "judge/0")}
    assert where["corpus/0"] < where["judge/0"]
    assert "297 more" in " ".join(text)
    assert "Killed" in " ".join(text)
    assert "judge/1" not in " ".join(text)
    assert "node node001: unknown no report" in " ".join(text)
    assert "node002" not in " ".join(text)
    assert len(text) < 15


def test_why_stays_short_when_everything_failed() -> None:
    text = explain_verdict(VERDICT, [event(seq, f"judge/{seq}") for seq in range(100)])
    assert "92 more" in " ".join(text)
    assert len(text) < 15


def test_a_failure_that_had_been_made_up_for_is_no_cause() -> None:
    events = [
        event(1, "judge/0"),
        event(2, "judge/0", "ReadinessChanged", after="ready"),
        event(3, "init/0"),
        event(4, "init/0", after="stopped"),
        event(5, "corpus/0"),
        event(6, "corpus/0", "TimerFired", after="starting"),
        event(7, "judge/1", "LivenessLost", after="stopping"),
        event(8, "judge/1", "StartupPassed", after="ready"),
        event(9, "judge/1", "Exited", after="failed"),
        event(10, "run", "StopBegun", ""),
        event(11, "corpus/0", "ReadinessChanged", after="ready"),
    ]
    text = " ".join(explain_verdict(replace(VERDICT, ended_by="fail_run"), events))
    assert "judge/0" not in text
    assert "init/0" not in text
    assert -1 < text.find("reason 5") < text.find("reason 9")
    assert "reason 7" not in text
    assert "what led to it" in text


def test_nothing_led_to_an_end_that_was_as_wanted() -> None:
    done = replace(VERDICT, ended_by="trainer", cause="the trainer ended (exit code 0)", exit_code=0, clean="true")
    assert explain_verdict(done, [event(1)]) == ["trainer: the trainer ended (exit code 0)"]
    failed = replace(done, cause="the trainer ended (exit code 10)", exit_code=1)
    assert explain_verdict(failed, [])[0] == "trainer: the trainer ended (exit code 10) (exit code 1)"
    asked = explain_verdict(replace(done, ended_by="operator", cause="retinue down"), [event(1)])
    assert "led to it" not in " ".join(asked)
    assert "reason 1" in " ".join(asked)


def test_one_of_a_kind_is_written_without_an_s() -> None:
    services = {"one": ServiceVerdict(1, 1, 0), "two": ServiceVerdict(2, 0, 0)}
    rows = render_verdict(replace(VERDICT, services=services)).splitlines()
    assert "  one        1 launch, 1 restart" in rows
    assert "  two        2 launches, 0 restarts" in rows


@pytest.mark.parametrize("phase", ["joining", "starting", "running", "ending"])
def test_a_snapshot_says_its_age_from_five_seconds_on_but_not_the_last_one(phase: str) -> None:
    status = replace(STATUS, phase=phase, ended_by="signal" if phase == "ending" else "", cause="SIGTERM")
    assert "old" not in render_status(status, STATUS.updated_utc + 4.9)
    told = " ".join(render_status(status, STATUS.updated_utc + 5.0).split())
    assert "this snapshot is 5 s old: the controller is down, or the file system is full or hangs" in told
    assert "old" not in render_status(replace(status, phase="over"), STATUS.updated_utc + 3600)


@pytest.mark.parametrize(("phase", "ended_utc"), [("over", None), ("over", 1000.0), ("running", 1000.0)])
def test_the_clock_of_a_run_that_is_over_or_dead_stands_still(phase: str, ended_utc: float | None) -> None:
    status = replace(STATUS, phase=phase, started_utc=970.0, updated_utc=1000.0, end_utc=5000.0)
    told = " ".join(render_status(status, 4600.0, ended_utc).split())
    assert "was up 00:00:30" in told
    assert "of the allocation left" not in told
    assert "; up 01:00:30, 400 s of the allocation left" in " ".join(
        render_status(replace(status, phase="running"), 4600.0).split()
    )


def test_a_replica_that_ended_as_it_was_told_is_no_cause() -> None:
    assert len(explain_verdict(replace(VERDICT, clean="true"), [event(1, after="stopped")])) == 1


def test_a_printed_verdict_names_every_node_and_how_clean_it_is() -> None:
    text = render_verdict(replace(VERDICT, leftovers=({"pid": 7, "cmd": "sleep \x1b[1m"},)))
    assert "node node001: clean unknown (no report) no report" in text
    assert "node node002: clean true (namespace)" in text
    assert "pid 7 sleep \\x1b[1m" in text
