"""Budgets, leases, limits, victims: what is decided about sandboxes by numbers alone."""

import os
import random
import signal
from pathlib import Path

import pytest

from retinue.sandbox.budget import Budget, Weight
from retinue.sandbox.host_settings import BOXES_PER_SHARD, count_shards
from retinue.sandbox.host_watch import choose_victim, find_least_bytes
from retinue.sandbox.leases import Leases
from retinue.sandbox.node_memory import read_available_bytes, read_limit_bytes
from retinue.sandbox.requests import (
    CreateRequest,
    Fault,
    Limits,
    check_create,
    parse_duration_within,
    parse_limits,
)
from retinue.sandbox.shard_box import judge_gone

GIB = 2**30


def test_a_budget_is_full_by_its_first_part_that_is_full() -> None:
    budget = Budget(Weight(10, 100, 1000))
    budget.take(Weight(1, 90, 10))
    assert budget.fits(Weight(1, 10, 10))
    assert not budget.fits(Weight(1, 11, 10))
    assert not budget.fits(Weight(1, 1, 991))
    assert not budget.fits(Weight(10, 1, 1))
    budget.give(Weight(1, 90, 10))
    assert budget.used == Weight(0, 0, 0)


def test_what_can_never_fit_is_told_by_name_at_once() -> None:
    budget = Budget(Weight(10, 100, 1000))
    budget.take(Weight(10, 100, 1000))
    assert budget.could_fit(Weight(1, 101, 1)) == "memory_bytes"
    assert budget.could_fit(Weight(1, 100, 1)) == ""


def test_a_lease_runs_out_once_and_only_when_nobody_holds_or_renewed_it() -> None:
    leases = Leases()
    for name in ("idle", "renewed", "held", "gone"):
        leases.begin(name, 10.0, 0.0)
    leases.hold("held")
    leases.renew("renewed", 8.0)
    leases.end("gone")
    assert leases.pop_expired(9.9) == []
    assert leases.pop_expired(10.0) == ["idle"]
    assert leases.pop_expired(17.9) == []
    assert leases.pop_expired(18.0) == ["renewed"]
    leases.let_go("held", 100.0)
    assert leases.pop_expired(109.9) == []
    assert leases.pop_expired(110.0) == ["held"]
    assert leases.pop_expired(1e9) == []


def test_a_lease_that_is_made_shorter_runs_out_sooner() -> None:
    leases = Leases()
    leases.begin("box", 1000.0, 0.0)
    leases.renew("box", 1.0, 5.0)
    assert leases.pop_expired(5.9) == []
    assert leases.pop_expired(6.0) == ["box"]


def test_what_held_a_lease_twice_has_to_let_go_twice() -> None:
    leases = Leases()
    leases.begin("box", 1.0, 0.0)
    leases.hold("box")
    leases.hold("box")
    leases.let_go("box", 5.0)
    assert leases.pop_expired(50.0) == []
    leases.let_go("box", 60.0)
    assert leases.pop_expired(61.0) == ["box"]
    leases.let_go("box", 62.0)  # Ended meanwhile: nothing to do.


def test_leases_agree_with_a_plain_list_of_them() -> None:
    chance = random.Random(5)
    leases, ends, held, now_s = Leases(), dict[str, float](), dict[str, int](), 0.0
    for step in range(3000):
        now_s += chance.random()
        name = f"b{chance.randrange(20)}"
        if name not in ends:
            ends[name], held[name] = now_s + 5, 0
            leases.begin(name, 5.0, now_s)
        elif held[name] and chance.random() < 0.6:
            held[name] -= 1
            ends[name] = max(ends[name], now_s + 5)
            leases.let_go(name, now_s)
        elif chance.random() < 0.3:
            held[name] += 1
            leases.hold(name)
        elif chance.random() < 0.3:
            ends[name] = now_s + 5
            leases.renew(name, now_s)
        due = sorted(name for name in ends if ends[name] <= now_s and not held[name])
        assert sorted(leases.pop_expired(now_s)) == due, step
        for name in due:
            del ends[name]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"dsik": 1}, "limits.dsik is unknown"),
        ({"disk": "1"}, "limits.disk"),
        ({"disk": "1GB"}, "limits.disk"),
        ({"disk": 1}, "limits.disk"),
        ({"disk": 2**50}, "limits.disk"),
        ({"pids": "64"}, "whole number"),
        ({"pids": 1}, "limits.pids"),
        ({"pids": 2.5}, "whole number"),
        ({"memory": float("inf")}, "limits.memory"),
        ({"memory": -1}, "limits.memory"),
        ({"wall": "0s"}, "limits.wall"),
        ({"wall": float("nan")}, "limits.wall"),
        ({"cpu": 0.5}, "limits.cpu"),
    ],
)
def test_a_limit_that_has_no_meaning_is_refused_by_name(given: dict[str, int | float | str], complaint: str) -> None:
    with pytest.raises(Fault) as caught:
        parse_limits(given, Limits())
    assert caught.value.status == 400
    assert complaint in str(caught.value)


def test_limits_are_laid_over_the_defaults_with_or_without_units() -> None:
    limits = parse_limits({"disk": "1GiB", "wall": "2m", "pids": 64, "cpu": 0, "memory": 2 * GIB}, Limits(inodes=300))
    assert limits == Limits(disk=GIB, wall=120.0, pids=64, cpu=0.0, memory=2 * GIB, inodes=300)
    assert limits.weight_bytes == 3 * GIB


@pytest.mark.parametrize(
    "fields",
    [
        {"image": ""},
        {"image": "a\0b"},
        {"key": ""},
        {"key": "x" * 201},
        {"workdir": "relative"},
        {"hostname": ""},
        {"hostname": "x" * 65},
        {"hostname": "a\nb"},
        {"env": {"A=B": "c"}},
        {"env": {"A": "b\0"}},
        {"env": {"": "b"}},
        {"user": "nobody"},
        {"user": -1},
        {"user": 2**31},
    ],
)
def test_a_create_that_has_no_meaning_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Fault) as caught:
        check_create(CreateRequest(**({"image": "i"} | fields)))  # type: ignore[arg-type]
    assert caught.value.status == 400


def test_the_user_is_root_or_a_number() -> None:
    assert [check_create(CreateRequest("i", user=user)) for user in ("root", 0, 1000, "1000")] == [0, 0, 1000, 1000]


def test_a_duration_out_of_bounds_names_its_field() -> None:
    assert parse_duration_within("lease_s", "2m", 60.0, 1.0, 600.0) == 120.0
    assert parse_duration_within("lease_s", None, 60.0, 1.0, 600.0) == 60.0
    with pytest.raises(Fault, match="lease_s"):
        parse_duration_within("lease_s", 601, 60.0, 1.0, 600.0)


def test_the_victim_is_the_newest_of_the_large_so_that_nobody_can_choose_to_be_it() -> None:
    ages = {"old-large": 1.0, "new-large": 2.0, "newest-small": 3.0}.__getitem__
    assert choose_victim({}, ages) is None
    assert choose_victim({"old-large": 100, "new-large": 51, "newest-small": 49}, ages) == "new-large"
    assert choose_victim({"old-large": 100, "new-large": 49, "newest-small": 1}, ages) == "old-large"


def test_a_small_node_keeps_enough_for_itself_and_a_large_one_a_share() -> None:
    assert find_least_bytes(GIB) == 256 * 2**20
    assert find_least_bytes(1000 * GIB) == 30 * GIB


def test_a_sandbox_that_went_is_our_fault_unless_its_own_commands_may_have_done_it() -> None:
    assert judge_gone(signal.SIGKILL, is_busy=True).type == "sandbox_killed"
    assert judge_gone(signal.SIGKILL, is_busy=False).type == "infra_failed"
    assert judge_gone(signal.SIGSEGV, is_busy=True).type == "infra_failed"
    assert judge_gone(-1, is_busy=True).type == "infra_failed"


def test_shards_are_as_many_as_cpus_or_as_the_descriptors_ask() -> None:
    assert count_shards(10, 4) == 4
    assert count_shards(25_000, 2) >= -(-25_000 // BOXES_PER_SHARD)


def write(place: Path, **texts: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (place / name.replace("__", ".")).write_text(text)


def test_the_smallest_control_group_above_us_is_the_memory_that_there_is(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cg"
    write(proc, meminfo="MemTotal:  100000 kB\nMemAvailable:  90000 kB\n")
    write(proc / "self", cgroup="0::/job/step/task\n")
    write(groups / "job", memory__max="50000000", memory__current="40000000", memory__stat="inactive_file 5000000\n")
    write(groups / "job/step", memory__max="max", memory__current="1", memory__stat="inactive_file 0\n")
    assert read_limit_bytes(proc, groups) == 50_000_000
    assert read_available_bytes(proc, groups) == 15_000_000


def test_the_old_kind_of_control_group_limits_too_and_none_does_not(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cg"
    write(proc, meminfo="MemTotal:  100000 kB\nMemAvailable:  90000 kB\n")
    write(proc / "self", cgroup="9:memory:/slurm/job\n3:cpu:/\n0::/\n")
    assert read_limit_bytes(proc, groups) == 102_400_000
    old = groups / "memory/slurm/job"
    write(old, memory__limit_in_bytes="60000000", memory__usage_in_bytes="9", memory__stat="total_inactive_file 4\n")
    assert read_limit_bytes(proc, groups) == 60_000_000
    assert read_available_bytes(proc, groups) == 59_999_995
    (old / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert read_available_bytes(proc, groups) == 92_160_000


def test_this_machine_has_memory() -> None:
    assert 0 < read_available_bytes() <= read_limit_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
