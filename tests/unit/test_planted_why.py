"""Of a replica that crashed again and again, the first crash is the one that explains."""

from retinue.journal.events import EventLine
from retinue.journal.verdict import Verdict, explain_verdict


def test_the_first_failure_of_a_replica_is_told_before_its_last() -> None:
    verdict = Verdict("abc", "x", 0, "fail_run", "judge is beyond its budget", 5, 0.0, 9.0, "true")
    words = ["out of GPU memory", "port taken", "cannot be launched"]
    events = [EventLine(at, 1000.0 + at, "judge/0", "Exited", why, after="backoff") for at, why in enumerate(words)]
    text = "\n".join(explain_verdict(verdict, events))
    assert -1 < text.find("out of GPU memory") < text.find("cannot be launched")
