"""Nodes side by side: what they share is said once, what differs is marked; clocks are compared as far as one can."""

import re
from io import StringIO

import pytest
from rich.console import Console

from retinue.cli.doctor_nodes import parse_step
from retinue.cli.doctor_table import build_differences, build_summary, build_table
from retinue.doctor.compare import build_rows, find_differences
from retinue.doctor.judge_clock import judge_clock, measure_offset
from retinue.doctor.reading import find_kind, find_proc_masks, parse_mounts
from retinue.doctor.records import Facts, Finding, NodeAnswer, State, Trial
from retinue.terms.record import to_json

FINE = Finding("fuse", ("sandbox",), State.OK, "/dev/fuse opened")
BROKEN = Finding("fuse", ("sandbox",), State.REFUSED, "/dev/fuse: Permission denied", "why", "your admin", "chmod")
KERNEL = Finding("kernel", ("keeper",), State.OK, "Linux 6.12")


def test_what_all_nodes_have_in_common_is_one_row_without_a_mark() -> None:
    rows = build_rows({"n1": (KERNEL, FINE), "n2": (KERNEL, FINE)})
    assert [(row.finding, row.nodes, row.differs) for row in rows] == [
        (KERNEL, ("n1", "n2"), False),
        (FINE, ("n1", "n2"), False),
    ]


def test_the_one_node_that_differs_comes_first_and_all_rows_of_its_probe_are_marked() -> None:
    rows = build_rows({"n1": (KERNEL, FINE), "n2": (BROKEN, KERNEL), "n3": (KERNEL, FINE)})
    assert [(row.finding, row.nodes, row.differs) for row in rows] == [
        (KERNEL, ("n1", "n2", "n3"), False),
        (BROKEN, ("n2",), True),
        (FINE, ("n1", "n3"), True),
    ]


def test_two_findings_of_one_probe_on_every_node_are_no_difference() -> None:
    both = (FINE, Finding("fuse", ("checks",), State.FALLBACK, "x", "y"))
    assert not any(row.differs for row in build_rows({"n1": both, "n2": both}))


def test_settings_versions_and_trials_that_differ_are_named_with_their_nodes() -> None:
    one = Facts("n1", kernel="5.14.0", settings={"kernel.pid_max": "32768"}, trials={"fuse": Trial(True)})
    two = Facts("n2", kernel="5.14.0", settings={"kernel.pid_max": "4194304"}, trials={"fuse": Trial(False, "no")})
    found = {item.what: item.values for item in find_differences({"n1": one, "n2": two, "n3": one})}
    assert found == {
        "kernel.pid_max": {"32768": ("n1", "n3"), "4194304": ("n2",)},
        "trial of fuse": {"ok": ("n1", "n3"), "no": ("n2",)},
    }
    assert find_differences({"n1": one, "n3": one}) == ()


@pytest.mark.parametrize(
    ("ahead_s", "there_s", "busy_s", "back_s"), [(0.0, 0.01, 1.0, 0.01), (90.0, 0.2, 5.0, 0.1), (-3.0, 0.0, 30.0, 2.0)]
)
def test_an_offset_is_never_more_wrong_than_it_says(
    ahead_s: float, there_s: float, busy_s: float, back_s: float
) -> None:
    sent = 1000.0
    came, gave = sent + there_s + ahead_s, sent + there_s + busy_s + ahead_s
    offset_s, error_s = measure_offset((sent, came), (sent + there_s + busy_s + back_s, gave))
    assert abs(offset_s - ahead_s) <= error_s + 1e-9
    assert error_s == pytest.approx((there_s + back_s) / 2)


@pytest.mark.parametrize(
    ("offset_s", "error_s", "states"),
    [
        (0.4, 0.1, [State.OK]),
        (40.0, 0.1, [State.FALLBACK]),
        (-40.0, 0.1, [State.FALLBACK]),
        (3.0, 4.0, [State.OK]),
        (None, 0.0, []),
    ],
)
def test_a_clock_is_wrong_only_when_that_is_certain(
    offset_s: float | None, error_s: float, states: list[State]
) -> None:
    answer = NodeAnswer("n1", Facts("n1"), clock_offset_s=offset_s, clock_error_s=error_s)
    assert [finding.state for finding in judge_clock(answer)] == states


def test_a_steps_lines_are_facts_or_somebody_elses_words() -> None:
    line = to_json(Facts("n2", begun_utc=130.0, ended_utc=131.0)).decode()
    found = parse_step(f"srun: job 7 queued\n{line}\n{{broken\n", 100.0, 102.0)
    assert list(found) == ["n2"]
    assert found["n2"].clock_offset_s == pytest.approx(29.5)
    assert found["n2"].clock_error_s == pytest.approx(0.5)


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
23 22 0:22 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
24 22 0:6 /null /proc/kcore rw - devtmpfs devtmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
28 27 0:40 / /scratch\040space rw - lustre 10.0.0.1@tcp:/fs rw
29 27 0:41 / /tmp rw - xfs /dev/vdb rw
30 27 0:42 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp", "tmpfs"),
        ("/tmp/x", "tmpfs"),
        ("/tmpfiles", "ext4"),
        ("/scratch space/me", "lustre"),
        ("/proc/1", "proc"),
    ],
)
def test_a_place_is_on_the_last_file_system_mounted_nearest_above_it(path: str, kind: str) -> None:
    assert find_kind(path, parse_mounts(MOUNTS)) == kind


def test_binfmt_misc_does_not_mask_proc_and_a_device_over_an_entry_does() -> None:
    assert find_proc_masks(parse_mounts(MOUNTS)) == ("/proc/kcore",)


def render(item: object) -> str:
    console = Console(width=160, file=StringIO(), color_system=None)
    console.print(item)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_table_names_the_node_that_is_broken_and_what_to_change_there() -> None:
    rows = build_rows({"n1": (KERNEL, FINE), "n2": (KERNEL, BROKEN), "n3": (KERNEL, FINE)})
    kernel, broken, remedy, fine = render(build_table(rows, 3)).splitlines()[1:]
    assert "all 3" in kernel
    assert broken.split()[:3] == ["fuse", "refused", "n2"]
    assert "sandbox: why" in broken
    assert "your admin: chmod" in remedy
    assert "n1, n3" in fine
    assert build_summary(rows).startswith("1 refused, 0 with a fallback, 2 ok; docs/doctor.md")


def test_what_differs_is_printed_with_every_value_and_its_nodes() -> None:
    facts = {f"n{k}": Facts(f"n{k}", settings={"kernel.pid_max": "300" if k == 9 else "400"}) for k in range(1, 10)}
    text = render(build_differences(find_differences(facts), 9))
    assert re.search(r"kernel\.pid_max +400 +n1, n2, n3, n4 and 4 more", text)
    assert re.search(r"300 +n9", text)
