"""Reading a journal as it grows: each line once, whole, from where the last look ended."""

from pathlib import Path

from retinue.journal.events import EventLine, EventTail
from retinue.terms.record import to_json


def event(seq: int) -> EventLine:
    return EventLine(seq, 1000.0 + seq, "judge/0", "Exited", f"reason {seq}", "ready", "backoff")


def build(*numbers: int) -> bytes:
    return b"".join(to_json(event(seq)) + b"\n" for seq in numbers)


def append(path: Path, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)


def test_a_line_comes_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    assert tail.read_new() == [], "there is no file yet"
    append(path, build(1, 2))
    assert tail.read_new() == [event(1), event(2)]
    half = build(3)
    append(path, half[:25])
    assert tail.read_new() == []
    append(path, half[25:] + build(4))
    assert tail.read_new() == [event(3), event(4)]
    assert tail.read_new() == []


def test_a_line_that_the_writer_writes_again_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    append(path, build(1, 2, 2))
    assert tail.read_new() == [event(1), event(2)]
    append(path, build(2, 3))
    assert tail.read_new() == [event(3)]


def test_a_broken_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, build(1) + b'{"seq": 2, "t_\n\xff\n\n[]\n' + build(3))
    assert EventTail(path).read_new() == [event(1), event(3)]


def test_of_a_long_journal_only_the_end_is_read_at_first_and_then_all_that_is_new(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append(path, build(*range(1000)))
    tail = EventTail(path, back_bytes=3 * len(build(999)) + 10)
    assert tail.read_new() == [event(997), event(998), event(999)]
    append(path, build(*range(1000, 1100)))
    assert tail.read_new() == [event(seq) for seq in range(1000, 1100)]
    assert len(EventTail(path).read_new()) == 1100
