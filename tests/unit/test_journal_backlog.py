"""What waits is bounded; log lines go first, decisions last, and what is replaced is no loss."""

from retinue.journal.backlog import Backlog, Batch, Entry, Kind, drop_bytes


def log(text: bytes, since_s: float = 0.0) -> Entry:
    return Entry(Kind.LOG, text, since_s)


def line(text: bytes, since_s: float = 0.0) -> Entry:
    return Entry(Kind.LINE, text, since_s)


def take(backlog: Backlog, now_s: float = 0.0) -> Batch:
    batch = backlog.take(now_s)
    assert batch is not None
    return batch


def content(batch: Batch) -> bytes:
    return b"".join(entry.content for entry in batch.entries)


def test_entries_of_a_path_stay_in_order_and_travel_together() -> None:
    backlog = Backlog()
    for number in range(5):
        assert backlog.add("a", log(b"%d\n" % number))
    batch = take(backlog)
    assert content(batch) == b"0\n1\n2\n3\n4\n"
    assert not backlog.is_empty
    backlog.finish([], None)
    assert backlog.is_empty
    assert backlog.take(0.0) is None


def test_a_busy_path_does_not_keep_the_others_waiting() -> None:
    backlog = Backlog()
    for _ in range(10):
        backlog.add("busy", log(b"x" * 200_000))
    backlog.add("quiet", log(b"y"))
    served = []
    for _ in range(2):
        served.append(take(backlog).lane.path)
        backlog.finish([], None)
    assert served == ["busy", "quiet"]


def test_logs_are_refused_while_decisions_still_have_room() -> None:
    backlog = Backlog(max_entries=100, max_bytes=1000)
    assert backlog.add("log", log(b"x" * 740))
    assert not backlog.add("log", log(b"1\n2\n" + b"y" * 20))
    assert backlog.lost_lines == 2
    assert backlog.add("events", line(b"z" * 240))
    assert backlog.lost_vital == 0


def test_decisions_push_logs_out_and_are_lost_only_when_no_log_is_left() -> None:
    backlog = Backlog(max_entries=100, max_bytes=1000)
    backlog.add("log", log(b"a\n" * 300))
    assert backlog.add("events", line(b"z" * 900))
    assert backlog.lost_lines == 300
    assert not backlog.add("events", line(b"z" * 101))
    assert backlog.lost_vital == 1
    assert content(take(backlog)) == b"z" * 900
    backlog.finish([], None)
    assert backlog.is_empty


def test_the_number_of_entries_is_bounded_like_their_bytes() -> None:
    backlog = Backlog(max_entries=8, max_bytes=10**9)
    taken = [backlog.add("log", log(b"\n")) for _ in range(10)]
    assert taken == [True] * 6 + [False] * 4
    taken = [backlog.add("events", line(b"\n")) for _ in range(10)]
    assert taken == [True] * 8 + [False] * 2


def test_room_comes_back_when_things_are_written() -> None:
    backlog = Backlog(max_entries=100, max_bytes=1000)
    for _ in range(50):
        assert backlog.add("log", log(b"x" * 700))
        take(backlog)
        backlog.finish([], None)
    assert backlog.lost_lines == 0


def test_only_the_newest_replacement_is_written() -> None:
    backlog = Backlog(max_entries=10)
    for number in range(1000):
        assert backlog.add("status", Entry(Kind.REPLACE, b"%d" % number, float(number)))
    assert content(take(backlog)) == b"999"
    backlog.finish([], None)
    assert backlog.is_empty


def test_a_replacement_makes_older_appends_obsolete_and_newer_ones_follow_it() -> None:
    backlog = Backlog()
    backlog.add("tail", log(b"old"))
    backlog.add("tail", Entry(Kind.REPLACE, b"head", 0.0))
    backlog.add("tail", log(b"new"))
    assert content(take(backlog)) == b"head"
    backlog.finish([], None)
    assert content(take(backlog)) == b"new"
    backlog.finish([], None)
    assert (backlog.is_empty, backlog.lost_lines) == (True, 0)


def test_what_failed_is_tried_again_before_what_came_later() -> None:
    backlog = Backlog()
    backlog.add("events", line(b"one\n"))
    batch = take(backlog)
    backlog.add("events", line(b"two\n"))
    backlog.finish(drop_bytes(batch.entries, 2), retry_s=5.0)
    assert backlog.take(4.9) is None
    assert backlog.get_next_retry_s() == 5.0
    assert content(take(backlog, 5.0)) == b"e\ntwo\n"


def test_what_failed_is_obsolete_when_it_was_replaced_meanwhile() -> None:
    backlog = Backlog()
    backlog.add("status", Entry(Kind.REPLACE, b"old", 0.0))
    batch = take(backlog)
    backlog.add("status", Entry(Kind.REPLACE, b"new", 1.0))
    backlog.finish(batch.entries, retry_s=5.0)
    assert content(take(backlog)) == b"new"
    backlog.finish([], None)
    assert backlog.is_empty


def test_hurry_makes_waiting_retries_due() -> None:
    backlog = Backlog()
    backlog.add("events", line(b"one\n"))
    backlog.finish(take(backlog).entries, retry_s=500.0)
    assert backlog.take(1.0) is None
    backlog.hurry()
    assert content(take(backlog, 1.0)) == b"one\n"


def test_the_oldest_waiting_entry_is_known_in_every_state() -> None:
    backlog = Backlog()
    assert backlog.oldest_s is None
    backlog.add("a", log(b"x", 3.0))
    backlog.add("b", line(b"y", 4.0))
    assert backlog.oldest_s == 3.0
    take(backlog)
    assert backlog.oldest_s == 3.0
    backlog.finish([], None)
    assert backlog.oldest_s == 4.0
    backlog.finish(take(backlog).entries, retry_s=9.0)
    assert backlog.oldest_s == 4.0
