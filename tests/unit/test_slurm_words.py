"""srun's words about nodes, as Slurm 22.05.8 prints them."""

import pytest

from retinue.slurm.words import Words, parse_srun_words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("srun: error: node3: task 2: Exited with exit code 2", Words(("node3",), "Exited with exit code 2")),
        ("srun: error: n[2-3]: tasks 1-2: Killed\n", Words(("n2", "n3"), "Killed")),
        ("srun: error: Node failure on node3", Words(("node3",), "Node failure")),
        (
            "srun: error: Task launch for StepId=5.0 failed on node n2: Communication connection failure",
            Words(("n2",), "Task launch for StepId=5.0 failed: Communication connection failure"),
        ),
        ("srun: error: n[3-1]: task 1: Killed", None),
        ("srun: error: Unable to create step for job 5: Job/step already completing or completed", None),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", None),
        ("slurmstepd: error: execve(): /x: No such file or directory", None),
        ("", None),
    ],
)
def test_only_words_about_the_end_of_tasks_on_nodes_are_read(line: str, words: Words | None) -> None:
    assert parse_srun_words(line) == words
