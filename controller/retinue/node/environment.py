"""What a service's environment is. Pure: values in, a dict out.

Starts from the agent's own environment, drops what describes somebody else's
job step, adds what a service may rely on. Never reads a file or a clock.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from retinue.channel.join import Join
from retinue.errors import PermanentError
from retinue.plan.expand import expand
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import Record
from retinue.terms.run import ENDPOINTS

DROPPED = (
    "SLURM_*",
    "SLURMD_*",
    "SRUN_*",
    "SBATCH_*",
    "PMI*",
    "PMIX*",
    "OMPI_*",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_*",
    "TORCHELASTIC_*",
    "RETINUE_*",
)
"""Names (patterns) that say something about another process's place in the job.
Source: facts/slurm.md, "Steps and signals"; torchrun(1) for the last few."""

CALLERS = (
    *("*_API_KEY", "*_APIKEY", "*_TOKEN", "*_SECRET", "*_SECRET_*", "*_PASSWORD", "*_CREDENTIALS"),
    *("OPENAI_*", "ANTHROPIC_*", "AZURE_*", "AWS_*", "GOOGLE_*", "WANDB_*", "COMET_*", "NEPTUNE_*", "MLFLOW_*"),
    *("LANGSMITH_*", "LANGCHAIN_*", "*_PROXY", "*_proxy", "SSH_AUTH_SOCK", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS"),
)
"""Names (patterns) of what the caller reaches the outside with: keys, proxies, sockets of programs that go out for
others. A service that is to have one names it, in `env` or in `keep_env`."""
DIRECT = ("no_proxy", "NO_PROXY")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_MODE": "offline",
}
"""What tells libraries not to try: a denied download costs a start its retries, and usage reports fill the ledger."""

OWN_ADDRESS = ("VLLM_HOST_IP", "SGLANG_HOST_IP")
"""What tells an engine its own address, which it else finds out by a UDP socket."""

DEVICES = "CUDA_VISIBLE_DEVICES"
ALWAYS_DIRECT = ("127.0.0.1", "localhost", "::1")
"""Never through a proxy, whatever the site says."""


class Seat(Record, frozen=True):
    """Where one incarnation runs, as far as its environment is concerned."""

    join: Join
    port: int | None
    host: str
    """What `{host}` is: 127.0.0.1, or the node's address for `listen: node`."""
    port_file: str
    inner_port: int | None = None
    nodes: tuple[str, ...] = ()
    """Names of the run's nodes, for no_proxy."""
    secret_files: dict[str, str] = {}
    """Environment name -> content, already read."""


def build_placeholders(join: Join, host: str, port: int | None, inner_port: int | None = None) -> dict[str, str]:
    """Name what only the node knows; `python` is the interpreter that retinue itself runs with there."""
    values = {"host": host, "node_dir": join.node_dir, "python": join.python}
    if port is not None:
        values["port"] = str(port)
    if inner_port is not None:
        values["inner_port"] = str(inner_port)
    return values


def build_environment(spec: LaunchSpec, own: Mapping[str, str], seat: Seat) -> dict[str, str]:
    """Build the whole environment of one incarnation.

    Shape:  agent's own, minus DROPPED and CALLERS; plus OFFLINE for what is guarded, the run's names, the manifest's,
            the secrets; later wins.
    Errors: PermanentError when a GPU index is not one of what the agent sees.
    """
    env = {name: value for name, value in own.items() if not is_dropped(name, spec.keep_env)}
    env.setdefault("PYTHONUNBUFFERED", "1")
    if spec.egress is not None:
        told = OFFLINE if spec.egress.udp == "full" else {**OFFLINE, **dict.fromkeys(OWN_ADDRESS, seat.host)}
        env.update({name: value for name, value in told.items() if not _matches(name, spec.keep_env)})
    places = build_placeholders(seat.join, seat.host, seat.port, seat.inner_port)
    env.update({name: expand(value, places) for name, value in spec.env.items()})
    for name in DIRECT:
        env[name] = extend_no_proxy(env.get(name, ""), (*ALWAYS_DIRECT, *seat.nodes))
    if spec.gpus or DEVICES not in spec.env:
        env[DEVICES] = build_visible_devices(spec.gpus, own.get(DEVICES))
    env.update(spec.secrets)
    env.update(seat.secret_files)
    env.update(dict.fromkeys(spec.token_env, seat.join.token))
    # Last, so that a manifest cannot unmake the tags by which the tree is found and ended.
    env.update(build_tags(spec, seat.join.run_id))
    env.update(
        RETINUE_RUN_DIR=seat.join.run_dir,
        RETINUE_NODE_DIR=seat.join.node_dir,
        RETINUE_NODE=seat.join.node,
        RETINUE_ATTEMPT=str(seat.join.attempt),
        RETINUE_ENDPOINTS=f"{seat.join.attempt_dir}/{ENDPOINTS}",
        RETINUE_PORT_FILE=seat.port_file,
    )
    return env


def build_tags(spec: LaunchSpec, run_id: str) -> dict[str, str]:
    """Name the incarnation in the way a scan of /proc/PID/environ looks for it."""
    return {
        "RETINUE_RUN_ID": run_id,
        "RETINUE_REPLICA": spec.replica,
        "RETINUE_INCARNATION": str(spec.incarnation),
    }


def is_dropped(name: str, keep: Iterable[str]) -> bool:
    """Say whether hygiene removes this name; the service's own `keep_env` patterns win."""
    return name not in DIRECT and not _matches(name, keep) and _matches(name, (*DROPPED, *CALLERS))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def extend_no_proxy(present: str, more: Iterable[str]) -> str:
    """Add names to a no_proxy list, each once, the site's own first."""
    names = [name.strip() for name in present.split(",") if name.strip()]
    return ",".join(dict.fromkeys([*names, *more]))


def build_visible_devices(gpus: tuple[int, ...], own: str | None) -> str:
    """Translate indices into what the agent sees into what the service is to see.

    The agent's own list may hold other indices or UUIDs: entry i of it is GPU i.
    """
    if own is None:
        return ",".join(str(index) for index in gpus)
    seen = [entry.strip() for entry in own.split(",") if entry.strip()]
    missing = [index for index in gpus if index >= len(seen)]
    if missing:
        raise PermanentError(f"cannot use GPU {missing[0]}: the agent sees {len(seen)} (CUDA_VISIBLE_DEVICES={own!r})")
    return ",".join(seen[index] for index in gpus)
