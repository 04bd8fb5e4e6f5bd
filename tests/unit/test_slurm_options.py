"""sbatch's options, read without being sbatch: what is known, what is left open, what is refused."""

import pytest

from retinue.errors import UsageError
from retinue.slurm.options import Asked, read_sbatch_options


def read(*words: str, **env: str) -> Asked:
    return read_sbatch_options(words, env)


@pytest.mark.parametrize(
    ("words", "nodes", "gpus"),
    [
        ((), 1, 0),
        (("--nodes=4",), 4, 0),
        (("--nodes", "4"), 4, 0),
        (("-N4",), 4, 0),
        (("-N", "4", "-t", "2:00:00"), 4, 0),
        (("-HN4",), 4, 0),
        (("-N2-4",), 2, 0),
        (("-N2:8",), 2, 0),
        (("-N2", "--nodes=6"), 6, 0),
        (("-Nmany",), None, 0),
        (("-w", "n[1-3]"), 3, 0),
        (("-w", "n1"), 1, 0),
        (("--nodelist=n1,n[1-2],n2",), 2, 0),
        (("-w", "n[1-3]", "-N2-4"), 3, 0),
        (("-w", "n1", "-N3"), 3, 0),
        (("-w", "n[1-3]", "-n64"), 3, 0),
        (("-w", "./hosts"), None, 0),
        (("-w", "./hosts", "-N4"), 4, 0),
        (("-F", "hosts"), None, 0),
        (("-n", "64"), None, 0),
        (("-N2", "--gpus-per-node=a100:4"), 2, 4),
        (("-N2", "--gres=gpu:8"), 2, 8),
        (("-N2", "--gres=gpu:h100:4,nvme:1"), 2, 4),
        (("-N2", "--gres", "gpu"), 2, 1),
        (("-N2", "--gres=nvme:1"), 2, 0),
        (("-N2", "-G", "8"), 2, 4),
        (("-N3", "-G8"), 3, None),
        (("-N2", "--gpus-per-task=1"), 2, None),
        (("-N2", "--exclusive"), 2, None),
    ],
)
def test_what_the_allocation_will_have_is_read_where_the_options_say(
    words: tuple[str, ...], nodes: int | None, gpus: int | None
) -> None:
    asked = read(*words)
    assert (asked.node_count, asked.gpus_per_node) == (nodes, gpus)


@pytest.mark.parametrize(
    ("words", "limit_s"),
    [
        (("-t", "90"), 5400.0),
        (("-t90:30",), 5460.0),
        (("--time=2:00:00",), 7200.0),
        (("-t", "1-12"), 129600.0),
        (("-t", "1-0:30"), 88200.0),
        (("-t", "1-00:00:01"), 86460.0),
        (("-t", "60", "-t", "30"), 1800.0),
        (("-t", "60", "--time-min=10"), 600.0),
        (("-t", "0"), None),
        (("-t", "UNLIMITED"), None),
        (("-t", "soon"), None),
        ((), None),
    ],
)
def test_a_time_limit_is_read_as_slurm_does_in_whole_minutes(words: tuple[str, ...], limit_s: float | None) -> None:
    assert read(*words).time_limit_s == limit_s


def test_a_value_may_be_anything_and_is_not_taken_for_an_option() -> None:
    words = ("--export", "A=-N9,B=--nodes=9", "--comment=x -N9\n#SBATCH -N9", "--job-name", "-N9", "-J", "--array")
    asked = read(*words, "-N2")
    assert asked.node_count == 2
    assert asked.last("export") == "A=-N9,B=--nodes=9"
    assert not asked.has("array")


def test_a_flag_takes_no_word_after_it() -> None:
    for flag in ("--requeue", "--exclusive", "--hold", "-H", "-k", "-s"):
        with pytest.raises(UsageError, match=r'cannot take "train\.sh"'):
            read(flag, "train.sh")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.sh",), "after `--`"),
        (("-N2", "python"), "after `--`"),
        (("--array=1-3",), "--array"),
        (("-a", "1-3"), "--array"),
        (("--wrap", "echo"), "--wrap"),
        (("-N2", ":", "-N1"), "heterogeneous"),
        (("--nodes",), "value is missing"),
        (("-N",), "value is missing"),
    ],
)
def test_what_cannot_be_one_run_in_one_script_is_refused(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read(*words)


def test_sbatchs_own_variables_count_as_options_and_lose_to_those() -> None:
    assert read(SBATCH_GRES="gpu:2").gpus_per_node == 2
    assert read("--gres=gpu:4", SBATCH_GRES="gpu:2").gpus_per_node == 4
    assert read(SBATCH_TIMELIMIT="60").has("time")
    with pytest.raises(UsageError, match="--array"):
        read(SBATCH_ARRAY_INX="1-3")
