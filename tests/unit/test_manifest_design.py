"""The example of the design page is accepted as it stands, with templates of the right shape beside it."""

from retinue.manifest.load import load_manifest
from retinue.manifest.resolve import dump_manifest
from retinue.manifest.schema import Egress
from retinue.manifest.template import Shelf
from retinue.terms.replica import OnExhausted

EXAMPLE = """\
retinue: 1
run: {name: kolibri-rl, drain: 120s, hold: 15m}
nodes:                                   # groups of the allocation's nodes, in order
  train: {count: 2}
  env:   {count: rest}
trainer: {on: train, stop: {signal: TERM, grace: 60s}, egress: off}
services:
  judge:
    template: judge-vllm                 # templates/ ships these; a team adds its own directory
    with: {model: /models/judge-122b, tensor_parallel: 4}
    replicas: 4
    place: {on: env, gpus: 4}
    restart: {backoff: 10s, limit: 3, stable_for: 10m, on_exhausted: degrade}   # degrade | hold | fail_run
  corpus:
    template: retrieval
    with: {index: /scratch/team/wiki18}
    per_node: env
  customer:
    template: user-simulator
    with: {model_service: judge, personas: personas.jsonl}
    depends_on: {judge: ready}           # started | ready | completed; {condition: ready, required: false, restart: true}
  checks:  {template: checks,  per_node: all, with: {workers: 16, timeout: 10s, memory: 2GiB}}
  sandbox: {template: sandbox, per_node: env, with: {store: /scratch/team/images, limits: {disk: 1GiB, pids: 256}}}
  anything:
    command: [python, server.py, --port, "{port}"]      # any program can be a service
    probes:
      startup:   {http: /health, period: 5s, budget: 30m}
      readiness: {http: /health, period: 5s, timeout: 2s, failures: 3, successes: 2}
      liveness:  {http: /health, period: 10s, failures: 3, initial_delay: 5m}
    stop: {signal: TERM, grace: 30s}
    min_ready: 1
    egress: {udp: none, allow: ["10.0.0.0/8:443"]}      # default: the allocation only
"""  # noqa: E501 - the page's own line


def template(kind: str, parameters: str, command: str) -> str:
    return (
        f"template: 1\ndescription: stands for the one that ships later\nkind: {kind}\n"
        f"parameters: {{{parameters}}}\nservice: {{command: {command}}}\n"
    )


TEMPLATES = {
    "judge-vllm": template(
        "judge",
        "model: {type: path, required: true}, tensor_parallel: {type: integer, default: 1}",
        '[vllm, serve, "{with.model}", --tensor-parallel-size, "{with.tensor_parallel}", --port, "{port}"]',
    ),
    "retrieval": template("retrieval", "index: {type: path}", '[retrieve, "{with.index}", "{port}"]'),
    "user-simulator": template(
        "user-simulator",
        "model_service: {type: string}, personas: {type: path}",
        '[simulate, "{with.model_service}", "{with.personas}", "{port}"]',
    ),
    "checks": template(
        "checks",
        "workers: {type: integer}, timeout: {type: duration}, memory: {type: size}",
        '[check, "{with.workers}", "{with.timeout.seconds}", "{with.memory.bytes}", "{port}"]',
    ),
    "sandbox": template(
        "sandbox",
        "store: {type: path}, limits.disk: {type: size}, limits.pids: {type: integer}",
        '[host, "{with.store}", "--disk={with.limits.disk}", "--pids={with.limits.pids}", "{port}"]',
    ),
}

SHELF = Shelf({name: (f"{name}.yaml", text) for name, text in TEMPLATES.items()})


def test_the_example_of_the_design_page_loads_as_it_stands() -> None:
    manifest = load_manifest(EXAMPLE, "run.yaml", lambda directories: SHELF)
    judge, anything = manifest.services["judge"], manifest.services["anything"]
    assert (manifest.run.drain_s, manifest.run.hold_s) == (120.0, 900.0)
    assert [group.count for group in manifest.nodes.values()] == [2, "rest"]
    assert (manifest.trainer.on, manifest.trainer.stop.grace_s, manifest.trainer.egress) == ("train", 60.0, None)
    assert judge.command == (
        "vllm", "serve", "/models/judge-122b", "--tensor-parallel-size", "4", "--port", "{port}",
    )  # fmt: skip
    assert (judge.kind, judge.replicas, judge.place.gpus, judge.place.on) == ("judge", 4, 4, "env")
    assert (judge.restart.limit, judge.restart.on_exhausted) == (3, OnExhausted.DEGRADE)
    assert manifest.services["customer"].depends_on["judge"].condition == "ready"
    assert manifest.services["checks"].command == ("check", "16", "10", str(2 * 2**30), "{port}")
    assert manifest.services["sandbox"].command[2:4] == ("--disk=1GiB", "--pids=256")
    assert [service.per_node for service in manifest.services.values()] == [None, "env", None, "all", "env", None]
    assert anything.egress == Egress(udp="none", allow=("10.0.0.0/8:443",))
    assert anything.probes.startup is not None
    assert anything.probes.startup.http is not None
    assert (anything.probes.startup.http.path, anything.probes.startup.budget_s) == ("/health", 1800.0)
    assert [service.success for service in manifest.services.values()] == [()] * 6


def test_the_resolved_example_loads_without_any_template_to_the_same_manifest() -> None:
    manifest = load_manifest(EXAMPLE, "run.yaml", lambda directories: SHELF)
    assert load_manifest(dump_manifest(manifest), "manifest.yaml") == manifest
