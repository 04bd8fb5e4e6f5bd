"""Who may cancel a job: a node without a controller, only when the batch host is gone and never on silence alone."""

import pytest

from retinue.node.orphan import Word, decide_cancel, join_words, read_state

DOWN = "NodeName=n1 Arch=x86_64 CoresPerSocket=8 State=DOWN ThreadsPerCore=1 Reason=Not responding [slurm@now]"


@pytest.mark.parametrize(
    ("slurm", "nodes", "may_cancel"),
    [
        (Word.GONE, Word.UNKNOWN, True),
        (Word.GONE, Word.THERE, True),
        (Word.GONE, Word.GONE, True),
        (Word.UNKNOWN, Word.GONE, True),
        (Word.UNKNOWN, Word.THERE, False),
        (Word.UNKNOWN, Word.UNKNOWN, False),
    ],
)
def test_a_node_cancels_the_job_only_when_somebody_says_that_the_batch_host_is_gone(
    slurm: Word, nodes: Word, may_cancel: bool
) -> None:
    assert decide_cancel(slurm, nodes) is may_cancel


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("DOWN", Word.GONE),
        ("DOWN*", Word.GONE),
        ("DOWN*+DRAIN", Word.GONE),
        ("DOWN+DRAIN+NOT_RESPONDING", Word.GONE),
        ("IDLE+POWERED_DOWN", Word.GONE),
        ("MIXED*", Word.UNKNOWN),
        ("MIXED", Word.UNKNOWN),
        ("ALLOCATED+NOT_RESPONDING", Word.UNKNOWN),
        ("IDLE+DRAIN", Word.UNKNOWN),
    ],
)
def test_a_host_is_gone_when_slurm_calls_it_down_and_not_because_it_is_slow_to_answer(state: str, word: Word) -> None:
    assert read_state(DOWN.replace("State=DOWN", f"State={state}")) is word


@pytest.mark.parametrize("text", ["", "slurm_load_node error: Unable to contact slurm controller", "Reason=DOWN"])
def test_an_answer_that_says_nothing_is_no_death(text: str) -> None:
    assert read_state(text) is Word.UNKNOWN


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ([], Word.UNKNOWN),
        ([None, None], Word.UNKNOWN),
        ([None, False], Word.GONE),
        ([False, True, None], Word.THERE),
    ],
)
def test_nodes_that_cannot_be_reached_say_nothing(answers: list[bool | None], word: Word) -> None:
    assert join_words(answers) is word
