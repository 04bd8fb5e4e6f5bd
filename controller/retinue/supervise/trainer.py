"""What the trainer and the services learn of the run by their environment. Pure."""

from collections.abc import Mapping
from typing import Any

from retinue.allocation.nodelist import compress_nodelist
from retinue.node.environment import ALWAYS_DIRECT, extend_no_proxy
from retinue.plan.records import Plan
from retinue.slurm.hygiene import scrub_for_trainer
from retinue.terms import run as files
from retinue.terms.record import Record
from retinue.terms.run import RunRecord


class Surroundings(Record, frozen=True):
    """What the run was started in, and what it tells the trainer and the services of itself."""

    plan: Plan
    record: RunRecord
    caller: dict[str, str]
    """The environment of the command that started the run; secrets included, never written anywhere."""

    def build_shared_env(self, gateway_port: int) -> dict[str, str]:
        return build_shared_environment(self.plan, self.record, gateway_port)

    def build_trainer_order(self, gateway_port: int) -> dict[str, Any]:
        """Build the stub's `trainer` order."""
        env = build_trainer_environment(self.plan, self.record, self.caller, gateway_port)
        return {"op": "trainer", "argv": list(self.plan.trainer.argv), "env": env, "cwd": self.record.start_dir}


def name_variable(service: str) -> str:
    """`judge-small` -> `JUDGE_SMALL`."""
    return "".join(char if char.isalnum() else "_" for char in service).upper()


def build_service_urls(plan: Plan, gateway_port: int) -> dict[str, str]:
    """Service -> its URL for the whole run, without a trailing slash."""
    return {
        service.name: f"http://127.0.0.1:{gateway_port}/{service.name}"
        for service in plan.services
        if service.has_port and service.is_http
    }


def build_shared_environment(plan: Plan, record: RunRecord, gateway_port: int) -> dict[str, str]:
    """Build what is the same for the trainer and for every service on every node.

    Source: DESIGN.md section 4.
    """
    nodes = [node.name for node in plan.allocation.nodes]
    env = {
        "RETINUE_RUN_ID": record.run_id,
        "RETINUE_RUN_DIR": record.run_dir,
        "RETINUE_ENDPOINTS": f"{record.attempt_dir}/{files.ENDPOINTS}",
        "RETINUE_TOKEN_FILE": f"{record.run_dir}/{files.TOKEN}",
        "RETINUE_ATTEMPT": str(record.attempt),
        "RETINUE_NODELIST": compress_nodelist(nodes),
        "RETINUE_NNODES": str(len(nodes)),
    }
    if plan.allocation.end_utc is not None:
        env["RETINUE_DEADLINE_EPOCH"] = str(int(plan.allocation.end_utc))
    for service, url in build_service_urls(plan, gateway_port).items():
        env[f"RETINUE_{name_variable(service)}_URL"] = url
    for group in plan.groups:
        suffix = name_variable(group.name)
        env[f"RETINUE_NODELIST_{suffix}"] = compress_nodelist(group.nodes)
        env[f"RETINUE_NNODES_{suffix}"] = str(len(group.nodes))
    return env


def build_trainer_environment(
    plan: Plan, record: RunRecord, caller: Mapping[str, str], gateway_port: int
) -> dict[str, str]:
    """Add the run's variables to the caller's environment.

    Shape:  the caller's variables unchanged, but for `no_proxy`, which gains loopback and the run's nodes:
    clients inside the trainer must not ask a site proxy for 127.0.0.1. What another run left in the caller's
    environment is gone: a stale URL is worse than none. So is the size and place of a step, where the run was started
    inside one: the trainer's srun would be no larger.
    """
    own = {name: value for name, value in scrub_for_trainer(caller).items() if not name.startswith("RETINUE_")}
    env = {**own, **build_shared_environment(plan, record, gateway_port), "RETINUE_NODE_DIR": record.node_dir}
    nodes = tuple(node.name for node in plan.allocation.nodes)
    for name in ("no_proxy", "NO_PROXY"):
        env[name] = extend_no_proxy(env.get(name, ""), (*ALWAYS_DIRECT, *nodes))
    return env
