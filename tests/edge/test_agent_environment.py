"""What a service sees of the world it is started in, and what the agent imports to start it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agent_stage import open_stage

from retinue.channel.join import Join
from retinue.errors import PermanentError
from retinue.node.environment import Seat, build_environment, build_visible_devices, extend_no_proxy
from retinue.terms.egress import EgressRule
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import replace

JOIN = Join(
    run_id="0123456789ab", attempt=2, node="n1", addresses=(), run_dir="/run", attempt_dir="/run/attempt-2",
    node_dir="/tmp/node", start_dir="/start", python="", version="", ca_pem="", cert_pem="", key_pem="", token="",
)  # fmt: skip
SEAT = Seat(join=JOIN, port=8123, host="127.0.0.1", port_file="/tmp/node/port", nodes=("n1", "n2"))
SPEC = LaunchSpec(replica="judge/0", service="judge", index=0, incarnation=3, argv=("x",))
NOISE = {
    "PATH": "/usr/bin",
    "SLURM_JOB_ID": "7",
    "SLURM_CPU_BIND": "quiet",
    "PMI_RANK": "0",
    "PMIX_NAMESPACE": "x",
    "OMPI_COMM_WORLD_RANK": "0",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "n9",
    "MASTER_PORT": "29500",
    "RETINUE_REPLICA": "other/9",
    "RETINUE_ANYTHING": "x",
    "RANKING": "kept: only the exact name says something about a rank",
}


def test_another_steps_place_in_the_job_is_dropped_and_the_rest_is_kept() -> None:
    env = build_environment(SPEC, NOISE, SEAT)
    dropped = set(NOISE) - {"PATH", "RANKING", "RETINUE_REPLICA"}
    assert dropped.isdisjoint(env)
    assert env["PATH"] == "/usr/bin"
    assert env["RANKING"] == NOISE["RANKING"]


CALLERS = {
    "OPENAI_API_KEY": "sk",
    "HF_TOKEN": "hf",
    "WANDB_API_KEY": "w",
    "WANDB_PROJECT": "p",
    "AWS_SECRET_ACCESS_KEY": "a",
    "AWS_PROFILE": "team",
    "https_proxy": "http://proxy:3128",
    "ALL_PROXY": "socks5://proxy",
    "GITHUB_TOKEN": "g",
    "DB_PASSWORD": "p",
    "SSH_AUTH_SOCK": "/tmp/agent",
}
"""What the caller goes out with."""
OF_NO_CALLER = {
    "HF_HOME": "/scratch/hf",
    "TOKENIZERS_PARALLELISM": "false",
    "no_proxy": "site",
    "LANG": "C",
    "PROXY": "x",
}


def test_keys_and_proxies_of_the_caller_are_no_services_unless_it_names_them() -> None:
    env = build_environment(SPEC, {**CALLERS, **OF_NO_CALLER}, SEAT)
    assert set(CALLERS).isdisjoint(env)
    assert {name: env[name] for name in OF_NO_CALLER if name != "no_proxy"} == {
        name: value for name, value in OF_NO_CALLER.items() if name != "no_proxy"
    }
    assert env["no_proxy"].startswith("site,")
    named = replace(SPEC, keep_env=("AWS_*", "*_proxy"), env={"OPENAI_API_KEY": "own"}, secrets={"HF_TOKEN": "own"})
    env = build_environment(named, CALLERS, SEAT)
    assert (env["AWS_PROFILE"], env["https_proxy"]) == ("team", "http://proxy:3128")
    assert (env["OPENAI_API_KEY"], env["HF_TOKEN"]) == ("own", "own")
    assert "WANDB_API_KEY" not in env


def test_a_guarded_service_is_told_not_to_try_the_outside() -> None:
    guarded = replace(SPEC, egress=EgressRule())
    env = build_environment(guarded, {"HF_HUB_OFFLINE": "0"}, SEAT)
    assert (env["HF_HUB_OFFLINE"], env["WANDB_MODE"], env["VLLM_NO_USAGE_STATS"]) == ("1", "offline", "1")
    assert (env["VLLM_HOST_IP"], env["SGLANG_HOST_IP"]) == ("127.0.0.1", "127.0.0.1")
    assert "VLLM_HOST_IP" not in build_environment(replace(SPEC, egress=EgressRule(udp="full")), {}, SEAT)
    assert build_environment(replace(guarded, env={"HF_HUB_OFFLINE": "0"}), {}, SEAT)["HF_HUB_OFFLINE"] == "0"
    kept = build_environment(replace(guarded, keep_env=("HF_*",)), {"HF_HUB_OFFLINE": "0"}, SEAT)
    assert kept["HF_HUB_OFFLINE"] == "0"
    assert "HF_HUB_OFFLINE" not in build_environment(SPEC, {}, SEAT)


def test_a_service_may_ask_to_keep_names_by_pattern() -> None:
    spec = LaunchSpec(replica="a/0", service="a", index=0, incarnation=1, argv=(), keep_env=("SLURM_JOB_*", "RANK"))
    env = build_environment(spec, NOISE, SEAT)
    assert (env["SLURM_JOB_ID"], env["RANK"]) == ("7", "3")
    assert "SLURM_CPU_BIND" not in env


def test_the_runs_own_names_are_there_and_a_manifest_cannot_unmake_them() -> None:
    spec = LaunchSpec(
        replica="judge/0", service="judge", index=0, incarnation=3, argv=(), env={"RETINUE_REPLICA": "x", "A": "{port}"}
    )
    env = build_environment(spec, NOISE, SEAT)
    wanted = {
        "A": "8123",
        "RETINUE_RUN_ID": "0123456789ab",
        "RETINUE_RUN_DIR": "/run",
        "RETINUE_NODE_DIR": "/tmp/node",
        "RETINUE_ENDPOINTS": "/run/attempt-2/endpoints.json",
        "RETINUE_REPLICA": "judge/0",
        "RETINUE_INCARNATION": "3",
        "RETINUE_PORT_FILE": "/tmp/node/port",
        "RETINUE_ATTEMPT": "2",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert {name: env[name] for name in wanted} == wanted


def test_python_buffering_that_was_chosen_stays_chosen() -> None:
    assert build_environment(SPEC, {"PYTHONUNBUFFERED": ""}, SEAT)["PYTHONUNBUFFERED"] == ""


def test_the_runs_nodes_are_never_behind_the_sites_proxy() -> None:
    spec = replace(SPEC, keep_env=("http_proxy",))
    env = build_environment(spec, {"http_proxy": "http://p:1", "no_proxy": ".site, 127.0.0.1"}, SEAT)
    assert env["http_proxy"] == "http://p:1"
    assert env["no_proxy"] == ".site,127.0.0.1,localhost,::1,n1,n2"
    assert env["NO_PROXY"] == "127.0.0.1,localhost,::1,n1,n2"
    assert extend_no_proxy("", ["a", "a"]) == "a"


@pytest.mark.parametrize(
    ("gpus", "own", "seen"),
    [((), None, ""), ((0, 1), None, "0,1"), ((1,), "4,5", "5"), ((0,), "GPU-aa, GPU-bb", "GPU-aa"), ((), "4,5", "")],
)
def test_gpu_indices_are_indices_into_what_the_agent_sees(gpus: tuple[int, ...], own: str | None, seen: str) -> None:
    assert build_visible_devices(gpus, own) == seen


def test_a_gpu_the_agent_does_not_see_is_refused_by_number() -> None:
    with pytest.raises(PermanentError, match="GPU 2"):
        build_visible_devices((2,), "4,5")


async def test_values_with_newlines_commas_and_quotes_arrive_as_they_are(tmp_path: Path) -> None:
    odd = "a,b 'c' \"d\"\n€ {x}"
    async with open_stage(tmp_path, own_env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"}) as stage:
        script = (
            "import json, os; f = open('{where}/env', 'w'); f.write(json.dumps(dict(os.environ)) + '\\n'); f.close()"
        )
        await stage.start(stage.build_spec(script, env={"ODD": odd.replace("{", "{{").replace("}", "}}")}))
        env = json.loads(await stage.wait_file("env"))
        assert env["ODD"] == odd
        assert "SLURM_JOB_ID" not in env
        assert env["RETINUE_NODE"] == "n1"


def test_the_agent_imports_nothing_but_the_standard_library_and_msgspec() -> None:
    code = "import sys, retinue.node.agent; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    assert "retinue" in modules
    stray = {name for name in modules if name not in sys.stdlib_module_names and not name.startswith("_")}
    # msgspec itself imports typing_extensions where that is installed.
    assert stray <= {"retinue", "msgspec", "typing_extensions", "sitecustomize", "usercustomize"}
