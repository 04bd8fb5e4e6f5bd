"""`run.requeue`: a right policy, and each wrong one as the line a person reads."""

import pytest

from retinue.manifest.load import check_manifest, load_manifest
from retinue.manifest.resolve import dump_manifest

REST = "services: {a: {command: [x]}}\n"


def findings(run: str) -> list[str]:
    text = f"retinue: 1\nrun: {{name: x, {run}}}\n{REST}"
    return [finding.render("m").removeprefix("m:2:") for finding in check_manifest(text)]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("requeue: {on: [timeout, preempted, node_fail], max: 3}", []),
        ("drain: 0s, requeue: {on: [node_fail]}", []),
        (
            "requeue: {on: [timeouts]}",
            ["31: run.requeue.on[0]: is timeout, preempted or node_fail, not 'timeouts'; did you mean 'timeout'?"],
        ),
        ("requeue: {on: timeout}", ["30: run.requeue.on: is a list, not 'timeout'; write [timeout]"]),
        ("requeue: {on: []}", ["30: run.requeue.on: is empty; name at least one, or remove run.requeue"]),
        ("requeue: {on: [timeout, timeout]}", ["40: run.requeue.on[1]: names 'timeout' twice; remove one of them"]),
        ("requeue: {max: 2}", ["16: run.requeue.on: is missing"]),
        ("requeue: {on: [node_fail], max: 0}", ["48: run.requeue.max: must be at least 1, not 0"]),
        ("requeue: {on: [node_fail], maxx: 1}", ["43: run.requeue: unknown key 'maxx'; did you mean 'max'?"]),
        (
            "drain: 0s, requeue: {on: [timeout]}",
            [
                "41: run.requeue.on: 'timeout' needs time to ask for another attempt, and run.drain is 0s; "
                "set run.drain to what a stop takes, '120s'"
            ],
        ),
    ],
)
def test_a_policy_is_right_or_one_line_says_what_is_not(run: str, expected: list[str]) -> None:
    assert findings(run) == expected


def test_the_policy_comes_back_from_the_kept_manifest() -> None:
    text = f"retinue: 1\nrun: {{name: x, requeue: {{on: [timeout, node_fail], max: 2}}}}\n{REST}"
    manifest = load_manifest(text, "m")
    assert manifest.run.requeue is not None
    assert (manifest.run.requeue.on, manifest.run.requeue.max) == (("timeout", "node_fail"), 2)
    assert load_manifest(dump_manifest(manifest), "m") == manifest


def test_without_one_nothing_is_queued_again_by_us() -> None:
    assert load_manifest(f"retinue: 1\nrun: {{name: x}}\n{REST}", "m").run.requeue is None
