"""The agents' step: its whole line for each Slurm, and the environment it is started in."""

import pytest

from retinue.slurm.hygiene import scrub_for_query, scrub_for_step, scrub_for_submit, scrub_for_trainer
from retinue.slurm.version import build_step_flags, parse_slurm_version

SIZE, LIVES = "--nodes=4 --ntasks=4 --ntasks-per-node=1", " --cpu-bind=none --wait=0 --kill-on-bad-exit=0{no_kill}"
OLD = SIZE + " --overlap --mem=0{gres}" + LIVES
NEW = SIZE + " --external-launcher" + LIVES
TAIL = " --mpi=none --input=none --export=ALL --quiet"


@pytest.mark.parametrize("version", ["20.11.9", "22.05.8", "23.02.7"])
def test_a_step_before_23_11_names_what_it_shares(version: str) -> None:
    assert " ".join(build_step_flags(version, 4, 0, False)) == OLD.format(gres="", no_kill="") + TAIL
    expected = OLD.format(gres=" --gres=gpu:8", no_kill=" --no-kill") + TAIL
    assert " ".join(build_step_flags(version, 4, 8, True)) == expected


@pytest.mark.parametrize("version", ["23.11.0", "23.11", "24.05.1", "25.11.7", "26.05.0"])
def test_a_step_from_23_11_is_an_external_launcher_and_takes_nothing(version: str) -> None:
    assert " ".join(build_step_flags(version, 4, 0, False)) == NEW.format(no_kill="") + TAIL
    assert " ".join(build_step_flags(version, 4, 8, True)) == NEW.format(no_kill=" --no-kill") + TAIL


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm 22.05.8\n", "22.05.8"),
        ("slurm-wlm 22.05.8\n", "22.05.8"),
        ("slurm 23.11.0-0rc1\n", "23.11.0"),
        ("slurm 25.11.7-Bull.1.0\n", "25.11.7"),
        ("", None),
        ("srun: fatal: Could not establish a configuration source", None),
    ],
)
def test_the_version_is_found_in_what_srun_says(text: str, version: str | None) -> None:
    assert parse_slurm_version(text) == version


# --- environments ---------------------------------------------------------------------

COMMON = (
    "CLUSTER_NAME",
    "CONF",
    "CPUS_ON_NODE",
    "GTIDS",
    "JOBID",
    "JOB_CPUS_PER_NODE",
    "JOB_GID",
    "JOB_ID",
    "JOB_NAME",
    "JOB_NODELIST",
    "JOB_NUM_NODES",
    "JOB_PARTITION",
    "JOB_UID",
    "JOB_USER",
    "LOCALID",
    "NNODES",
    "NODEID",
    "NODELIST",
    "PRIO_PROCESS",
    "PROCID",
    "SUBMIT_DIR",
    "SUBMIT_HOST",
    "TASKS_PER_NODE",
    "TASK_PID",
    "TOPOLOGY_ADDR",
    "TOPOLOGY_ADDR_PATTERN",
)
RECORDED = {
    "22.05": [*COMMON, "NODE_ALIASES", "WORKING_CLUSTER"],
    "25.11": [*COMMON, "JOB_END_TIME", "JOB_START_TIME", "OOM_KILL_STEP"],
}
"""What a plain batch script finds, after SLURM_; recorded on real ones."""
LEAKED = (
    "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_LIST",
    "SLURM_CPU_BIND_TYPE",
    "SLURM_CPU_BIND_VERBOSE",
    "SLURM_MEM_BIND_LIST",
    "SLURM_DISTRIBUTION",
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_STEP_NODELIST",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_EXPORT_ENV",
    "SRUN_CPUS_PER_TASK",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_NODE",
    "SLURM_LABELIO",
    "SLURM_UNBUFFEREDIO",
    "SLURM_EXTERNAL_LAUNCHER",
)
OWN = {
    "PATH": "/bin",
    "HOME": "/home/rl",
    "SLURMD_NODENAME": "node1",
    "SLURM_TMPDIR": "/tmp/7",
    "CUDA_VISIBLE_DEVICES": "0",
}


def build_batch(version: str) -> dict[str, str]:
    return OWN | {f"SLURM_{name}": "x" for name in RECORDED[version]}


@pytest.mark.parametrize("version", RECORDED)
def test_what_a_batch_script_has_reaches_the_step_and_what_leaks_does_not(version: str) -> None:
    batch = build_batch(version)
    assert scrub_for_step(batch) == batch
    assert scrub_for_step(batch | dict.fromkeys(LEAKED, "leak")) == batch


@pytest.mark.parametrize("version", RECORDED)
def test_a_trainers_environment_is_the_batch_scripts_unchanged(version: str) -> None:
    batch = build_batch(version) | {"SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_PER_NODE": "4", "SLURM_NTASKS": "4"}
    assert scrub_for_trainer(batch) == batch


def test_a_trainer_that_is_started_from_inside_a_step_does_not_inherit_its_size_and_place() -> None:
    batch = build_batch("22.05")
    nested = scrub_for_trainer(batch | dict.fromkeys(LEAKED, "leak") | {"SLURM_STEP_ID": "0", "PMIX_RANK": "0"})
    gone = {
        f"SLURM_{name}" for name in ("NNODES", "NODEID", "PROCID", "LOCALID", "GTIDS", "TASKS_PER_NODE", "TASK_PID")
    }
    assert nested == {name: value for name, value in batch.items() if name not in gone}


@pytest.mark.parametrize("version", RECORDED)
def test_a_job_that_is_sent_from_inside_another_gets_nothing_of_that_one(version: str) -> None:
    outer = build_batch(version) | dict.fromkeys(LEAKED, "leak")
    outer |= {"SLURM_RESTART_COUNT": "3", "RETINUE_RUN_ID": "abc", "RANK": "0", "SBATCH_CPU_BIND": "cores"}
    user = {"SBATCH_ACCOUNT": "team", "SLURM_JWT": "token", "WANDB_MODE": "offline"}
    env, dropped = scrub_for_submit(outer | user)
    assert env == {"PATH": "/bin", "HOME": "/home/rl", "SLURM_CONF": "x", **user}
    assert set(dropped) == set(outer) - set(env)


def test_a_login_nodes_own_settings_stay_but_a_leaked_binding_does_not() -> None:
    mine = {"SBATCH_PARTITION": "gpu", "SLURM_CLUSTERS": "b", "SLURM_ACCOUNT": "team", "CUDA_VISIBLE_DEVICES": ""}
    env, dropped = scrub_for_submit(mine | {"SLURM_CPU_BIND": "cores", "RETINUE_RUN_ID": "abc"})
    assert env == mine
    assert dropped == ("RETINUE_RUN_ID", "SLURM_CPU_BIND")


def test_no_setting_of_a_person_or_site_changes_what_a_query_prints() -> None:
    site = {
        "SLURM_TIME_FORMAT": "relative",
        "SQUEUE_FORMAT": "%i",
        "SCONTROL_ALL": "1",
        "SLURM_CLUSTERS": "b",
        "TZ": "Asia/Tokyo",
    }
    access = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "t", "SLURM_SACK_SOCKET": "/run/s"}
    assert scrub_for_query(site | access) == {**access, "TZ": "UTC0", "LC_ALL": "C"}
