"""Placeholders of the trainer's command: a misspelt one is refused by name, what only looks like one is left alone."""

import pytest

from retinue.errors import UsageError
from retinue.plan.expand import expand_known
from retinue.plan.trainer_words import check_trainer_words

GROUPS = ("train", "env")
MAPPING = {"run_dir": "/r", "train.nodelist": "n[1-2]", "train.count": "2", "env.nodelist": "n3", "env.count": "1"}


@pytest.mark.parametrize(
    ("word", "name", "nearest"),
    [
        ("{typo.nodelist}", "typo.nodelist", ""),
        ("-w{trian.nodelist}", "trian.nodelist", "{train.nodelist}"),
        ("{train.nodes}", "train.nodes", "{train.nodelist}"),
        ("{train.Count}", "train.Count", "{train.count}"),
        ("--nodes={env.counts}", "env.counts", "{env.count}"),
        ("{all.nodelists}", "all.nodelists", "{all.nodelist}"),
        ('{"n":{train.cuont}}', "train.cuont", "{train.count}"),
    ],
)
def test_a_misspelt_placeholder_is_refused_with_the_nearest_and_all_that_are_known(
    word: str, name: str, nearest: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_trainer_words(("srun", word), GROUPS)
    said = str(caught.value)
    assert caught.value.exit_code == 2
    assert f"cannot fill {{{name}}}" in said
    assert "there is {train.nodelist}, {train.count}, {env.nodelist}, {env.count}, {all.nodelist}" in said
    assert f"did you mean {nearest}?" in said if nearest else True
    # The way out that it names is one.
    assert f"write {{{{{name}}}}}" in said
    assert check_trainer_words((f"{{{{{name}}}}}",), GROUPS) == []
    assert expand_known(f"{{{{{name}}}}}", MAPPING | {"all.nodelist": "n[1-3]"}) == f"{{{name}}}"


def test_every_misspelt_one_is_named_once() -> None:
    with pytest.raises(UsageError) as caught:
        check_trainer_words(("{a.count}", "{train.x}", "{a.count}"), GROUPS)
    assert [line.split()[2] for line in str(caught.value).splitlines()] == ["{a.count}", "{train.x}"]


@pytest.mark.parametrize(
    "word",
    [
        "{train.nodelist}",
        "optimizer.lr=${train.lr}",
        "${count}",
        "{nodelist}",
        "{model.name}",
        "{train}",
        "{self.train.count}",
        "{train.loss:.3f}",
        "{ x.count }",
        "{{ x.count }}",
        '{"train": {"count": 2}}',
        "awk '{print $1}'",
        "{1.count}",
        "{}",
    ],
)
def test_what_is_not_ours_is_neither_refused_nor_changed(word: str) -> None:
    assert check_trainer_words((word,), GROUPS) == []
    if word != "{train.nodelist}":
        assert expand_known(word, MAPPING) == word


def test_a_placeholder_written_as_a_shells_variable_is_left_and_that_is_said() -> None:
    (said,) = check_trainer_words(("srun", "-w", "${train.nodelist}", "${train.nodelist}"), GROUPS)
    assert "${train.nodelist} is left as it is" in said
    assert expand_known("${train.nodelist}", MAPPING) == "${train.nodelist}"
    assert expand_known("${{train.nodelist}}", MAPPING) == "${train.nodelist}"
