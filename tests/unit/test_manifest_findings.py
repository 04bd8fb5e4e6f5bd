"""Manifests with one mistake each, and the exact line a person reads; then one with all of them."""

import pytest

from retinue.errors import ManifestError
from retinue.manifest.load import check_manifest, load_manifest

HEAD = "retinue: 1\nrun: {name: x}\n"
ONE = "exactly one of http, tcp, exec"


def findings(text: str) -> list[str]:
    return [finding.render("m") for finding in check_manifest(text)]


def in_service(line: str) -> str:
    """A manifest whose service `a` has one more line, line 6; it begins at column 5."""
    return f"{HEAD}services:\n  a:\n    command: [x]\n    {line}\n  b: {{command: [y, '{{port}}']}}\n"


SHAPE = [
    ("replica: 2", "6:5: services.a: unknown key 'replica'; did you mean 'replicas'?"),
    ("place: {gpu: 2}", "6:13: services.a.place: unknown key 'gpu'; did you mean 'gpus'?"),
    (
        "place: {zebra: 2}",
        "6:13: services.a.place: unknown key 'zebra'; known: on, gpus, cpus, memory, strategy, share_gpus",
    ),
    (
        "probes: {readiness: {http: {path: /, prot: 1}}}",
        "6:42: services.a.probes.readiness.http: unknown key 'prot'; did you mean 'port'?",
    ),
    ("egress: {upd: none}", "6:14: services.a.egress: unknown key 'upd'; did you mean 'udp'?"),
    ("replicas: 0", "6:15: services.a.replicas: must be at least 1, not 0"),
    ("replicas: 10001", "6:15: services.a.replicas: must be at most 10000, not 10001"),
    ("replicas: two", "6:15: services.a.replicas: is a whole number, not 'two'; write it like '4'"),
    ("replicas:", "6:5: services.a.replicas: has no value; write one, or remove the line"),
    ("probes: yes", "6:13: services.a.probes: is a mapping, not 'yes'"),
    ("cwd:", "6:5: services.a.cwd: has no value; write one, or remove the line"),
    (
        "probes: {startup: {http: }}",
        "6:24: services.a.probes.startup.http: has no value; write one, or remove the line",
    ),
    ("probes:", "6:5: services.a.probes: has no value; write one, or remove the line"),
    (
        "kind: juge",
        "6:11: services.a.kind: is judge, retrieval, user-simulator, checks, sandbox or command, not 'juge'; "
        "did you mean 'judge'?",
    ),
    (
        "restart: {on_exhausted: fail}",
        "6:29: services.a.restart.on_exhausted: is degrade, hold or fail_run, not 'fail'; did you mean 'fail_run'?",
    ),
    ("restart: {success: 0}", "6:24: services.a.restart.success: is a list, not '0'; write [0]"),
    ("restart: {success: [0, 256]}", "6:28: services.a.restart.success[1]: must be at most 255, not 256"),
    ("keep_env: RANK", "6:15: services.a.keep_env: is a list, not the text 'RANK'; write [RANK]"),
    ("keep_env: {a: b}", "6:15: services.a.keep_env: is a list, not a mapping; write [first, second]"),
    ("env: {A: {port}}", '6:14: services.a.env.A: is text, not a mapping; put the braces in quotes: "{port}"'),
    ("env: {A: }", "6:11: services.a.env.A: has no value; write one ('' is the empty text), or remove the line"),
    ("depends_on: b", "6:17: services.a.depends_on: is a list or a mapping, not 'b'; write [b] or {b: ready}"),
    (
        "depends_on: {b: redy}",
        "6:21: services.a.depends_on.b.condition: is started, ready or completed, not 'redy'; did you mean 'ready'?",
    ),
    ("depends_on: {b: [x]}", "6:21: services.a.depends_on.b: is a mapping, not a list"),
    (
        "probes: {startup: {http: health}}",
        "6:30: services.a.probes.startup.http.path: 'health' does not fit; a path begins with '/'",
    ),
    (
        "probes: {startup: {http: {port: 1}}}",
        "6:24: services.a.probes.startup.http.path: is missing; write 'path: /health'",
    ),
    (
        "probes: {startup: {tcp: true, period: 0s}}",
        "6:43: services.a.probes.startup.period: must be longer than zero, not '0s'",
    ),
    ("okay_delay: 5", "6:17: services.a.okay_delay: '5' has no unit; write '5s', '5m' or '5h'"),
    ("with: {a: b}", "6:5: services.a.with: 'with' has a meaning only beside 'template'"),
]

SENSE = [
    (
        "min_ready: 2",
        "6:16: services.a.min_ready: must be at most 1, the number of replicas, not 2; lower it, or raise replicas",
    ),
    ("place: {on: alll}", "6:17: services.a.place.on: there is no group 'alll'; did you mean 'all'?"),
    ("per_node: emv", "6:15: services.a.per_node: there is no group 'emv'; known: all"),
    ("depends_on: [c]", "6:18: services.a.depends_on.c: there is no service 'c'; known: b"),
    ("depends_on: [a]", "6:18: services.a.depends_on.a: waits for itself: a -> a; remove one of them"),
    (
        "depends_on: {b: completed}",
        "6:21: services.a.depends_on.b: 'b' never completes: it has a port, so no exit code "
        "means done; set services.b.restart.success, or wait for 'ready'",
    ),
    ("env: {1A: x}", "6:11: services.a.env.1A: '1A' is not a variable's name"),
    (
        "env: {RETINUE_RUN_ID: x}",
        "6:11: services.a.env.RETINUE_RUN_ID: RETINUE_* is set by the run; choose another name",
    ),
    ("env: {A: 'env:1x'}", "6:14: services.a.env.A: 'env:1x' names no variable; write 'env:NAME'"),
    (
        "env: {A: 'file:key'}",
        "6:14: services.a.env.A: 'file:key' is not an absolute path; write 'file:/path/to/secret'",
    ),
    ("env: {A: '{prot}'}", "6:14: services.a.env.A: unknown placeholder '{prot}'; did you mean '{port}'?"),
    (
        "env: {A: '{all.nodes}'}",
        "6:14: services.a.env.A: unknown placeholder '{all.nodes}'; did you mean '{all.nodelist}'?",
    ),
    (
        "env: {A: '{\"x\": 1}'}",
        "6:14: services.a.env.A: unknown placeholder '{\"x\": 1}'; write '{{' and '}}' for the characters",
    ),
    ("env: {A: 'a}b'}", "6:14: services.a.env.A: a '}' alone in 'a}b'; write '}}' for the character"),
    (
        "probes: {readiness: {exec: [x, '{hots}']}}",
        "6:36: services.a.probes.readiness.exec[1]: unknown placeholder '{hots}'; did you mean '{host}'?",
    ),
    (
        "probes: {readiness: {tcp: true, http: /}}",
        f"6:26: services.a.probes.readiness.tcp: has http and tcp; write {ONE}",
    ),
    ("probes: {readiness: {period: 1s}}", f"6:14: services.a.probes.readiness: asks nothing; write {ONE}"),
    (
        "probes: {readiness: {exec: []}}",
        "6:32: services.a.probes.readiness.exec: is an empty list; name the program and its arguments",
    ),
    (
        "probes: {liveness: {tcp: true, budget: 1s}}",
        "6:36: services.a.probes.liveness.budget: only a startup probe has a budget; remove it",
    ),
    (
        "probes: {liveness: {tcp: true, successes: 2}}",
        "6:47: services.a.probes.liveness.successes: must be 1 for liveness, not 2; as in Kubernetes; remove it",
    ),
    (
        "restart: {backoff: 10m}",
        "6:24: services.a.restart.backoff: backoff_max (300 s) is shorter than backoff (600 s)",
    ),
    (
        "restart: {success: [0, 3]}",
        "6:24: services.a.restart.success: exit code 3 is in success and in no_restart; "
        "keep it in one of them; no_restart is [3] when left out",
    ),
    (
        "egress: {allow: [example.org]}",
        "6:22: services.a.egress.allow[0]: 'example.org' is not CIDR, CIDR:PORT or "
        "HOST:PORT; write it like '10.0.0.0/8:443'",
    ),
]


@pytest.mark.parametrize(("line", "expected"), [*SHAPE, *SENSE])
def test_one_mistake_in_a_service_is_one_line_with_its_place_and_the_fix(line: str, expected: str) -> None:
    assert findings(in_service(line)) == [f"m:{expected}"]


WHOLE = [
    (
        "services: {a: {command: [x]}}\n",
        [
            "m:1:1: retinue: is missing; write 'retinue: 1', the version of this format",
            "m:1:1: run: is missing; write 'run: {name: my-run}'",
        ],
    ),
    ("retinue: 2\nrun: {name: x}\nservices: {a: {command: [x]}}\n", ["m:1:10: retinue: is 1, not 2"]),
    (HEAD, ["m:1:1: services: is missing; name at least one service"]),
    (f"{HEAD}services: {{}}\n", ["m:3:11: services: is empty; name at least one"]),
    (f"{HEAD}services: {{a: 4}}\n", ["m:3:15: services.a: is a mapping, not '4'"]),
    (f"{HEAD}services: {{a: }}\n", ["m:3:12: services.a: has no value; write one, or remove the line"]),
    (
        f"{HEAD}services: {{a: {{cwd: /}}}}\n",
        ["m:3:12: services.a: has neither 'template' nor 'command'; write one of them"],
    ),
    (
        f"{HEAD}services: {{a: {{with: {{x: y}}, place: {{gpus: 1}}}}}}\n",
        ["m:3:12: services.a: has neither 'template' nor 'command'; write one of them"],
    ),
    (
        f"{HEAD}services: {{a: {{command: []}}}}\n",
        ["m:3:25: services.a.command: is an empty list; name the program and its arguments"],
    ),
    (f"{HEAD}services: {{a: {{command: ['']}}}}\n", ["m:3:26: services.a.command[0]: the program's name is empty"]),
    (
        f"{HEAD}services: {{a: {{command: ls -l}}}}\n",
        ["m:3:25: services.a.command: is a list, not the text 'ls -l'; write [ls, -l]"],
    ),
    (
        f"{HEAD}services: {{a: {{comand: [x]}}}}\n",
        ["m:3:16: services.a: unknown key 'comand'; did you mean 'command'?"],
    ),
    (
        "retinue: 1\nrun: {name: a/b}\nservices: {a: {command: [x]}}\n",
        ["m:2:13: run.name: 'a/b' does not fit; letters, digits, '.', '_' and '-', at most 64"],
    ),
    (
        f"{HEAD}services: {{a: {{command: [x], replicas: 2, per_node: all}}}}\n",
        [
            "m:3:30: services.a.replicas: not together "
            "with per_node: there is one replica on each node of 'all'; remove one of them"
        ],
    ),
    (
        f"{HEAD}nodes: {{env: {{count: 1}}}}\nservices: {{a: {{command: [x], per_node: all, place: {{on: env}}}}}}\n",
        [
            "m:4:53: services.a.place.on: not together with the per_node, which says one on each node of 'all'; "
            "write 'per_node: env' instead, for one on each node of 'env'"
        ],
    ),
    (
        f"{HEAD}nodes: {{all: {{count: 1}}}}\nservices: {{a: {{command: [x]}}}}\n",
        ["m:3:9: nodes.all: the group 'all' cannot be defined; it always names every node"],
    ),
    (
        f"{HEAD}nodes: {{a: {{count: rest}}, b: {{count: rest}}}}\nservices: {{a: {{command: [x]}}}}\n",
        ["m:3:38: nodes.b.count: group 'a' already takes the rest; give one of them a number"],
    ),
    (
        f"{HEAD}nodes: {{a: {{}}}}\nservices: {{s: {{command: [x], place: {{on: a}}}}}}\n",
        ["m:3:9: nodes.a.count: is missing; write 'count: 2' or 'count: rest'"],
    ),
    (
        f"{HEAD}trainer: {{on: gpu}}\nservices: {{a: {{command: [x]}}}}\n",
        ["m:3:15: trainer.on: there is no group 'gpu'; known: all"],
    ),
    (
        f"{HEAD}services: {{user-sim: {{command: [x]}}, user_sim: {{command: [x]}}}}\n",
        [
            "m:3:38: services.user_sim: 'user_sim' is not a service's name; "
            "a name is a-z, 0-9 and '-', begins with a letter, and has at most 40 characters",
            "m:3:38: services.user_sim: RETINUE_USER_SIM_URL is already the variable of service 'user-sim'; "
            "choose another name",
        ],
    ),
    (
        f"{HEAD}nodes: {{x-url: {{count: 1}}}}\nservices: {{nodelist-x: {{command: [x]}}}}\n",
        [
            "m:3:9: nodes.x-url: RETINUE_NODELIST_X_URL is already the variable of service 'nodelist-x'; "
            "choose another name"
        ],
    ),
    (
        f"{HEAD}services:\n  a: {{command: [x], depends_on: [c]}}\n  b: {{command: [x], depends_on: [a]}}\n"
        "  c: {command: [x], depends_on: [b]}\n",
        ["m:4:34: services.a.depends_on.c: waits for itself: a -> c -> b -> a; remove one of them"],
    ),
]


@pytest.mark.parametrize(("text", "expected"), WHOLE)
def test_one_mistake_in_the_whole_has_its_place_and_the_fix(text: str, expected: list[str]) -> None:
    assert findings(text) == expected


def test_a_wrong_entry_does_not_make_references_to_it_wrong() -> None:
    text = f"{HEAD}nodes: {{env: 4}}\nservices:\n  a: 4\n  b: {{command: [x], depends_on: [a], place: {{on: env}}}}\n"
    assert findings(text) == [
        "m:3:14: nodes.env: is a mapping, not '4'",
        "m:5:6: services.a: is a mapping, not '4'",
    ]


def test_a_wrong_item_does_not_move_the_place_of_those_behind_it() -> None:
    text = f"{HEAD}services: {{a: {{command: [x, [y], {{z: 1}}, '{{prot}}']}}}}\n"
    assert findings(text) == [
        "m:3:29: services.a.command[1]: is text, not a list",
        "m:3:34: services.a.command[2]: is text, not a mapping",
        "m:3:42: services.a.command[3]: unknown placeholder '{prot}'; did you mean '{port}'?",
    ]


def test_two_cycles_that_share_a_service_are_both_found() -> None:
    entries = {"a": "b", "b": "a, c", "c": "b"}
    lines = [f"  {name}: {{command: [x], depends_on: [{wanted}]}}\n" for name, wanted in entries.items()]
    found = findings(f"{HEAD}services:\n{''.join(lines)}")
    assert [line.split(": ")[3].split(";")[0] for line in found] == ["a -> b -> a", "b -> c -> b"]


def test_one_replica_written_out_is_refused_beside_per_node_too() -> None:
    text = f"{HEAD}services: {{a: {{command: [x], replicas: 1, per_node: all}}}}\n"
    assert len(findings(text)) == 1


def test_escaped_braces_urls_and_ordinary_egress_rules_are_no_mistake() -> None:
    text = in_service("env: {A: '{{\"x\": 1}}', B: 'file:///data', C: 'env:TOKEN', D: 'file:/k{1}'}")
    rules = ["10.0.0.0/8:443", "10.0.0.0/8", "10.1.2.3", "db.example:5432", "[2001:db8::/32]:443", "2001:db8::1"]
    assert findings(text) == []
    assert findings(in_service(f"egress: {{allow: {rules}}}")) == []


def test_all_of_these_mistakes_in_one_file_are_one_report() -> None:
    lines = [in_service(line).splitlines()[5] for line, _ in [*SHAPE, *SENSE]]
    # One service per mistake, so that no two share a key; `b` is what some of them name.
    services = [f"  s{n}:\n    command: [x]\n{line.replace('[a]', f'[s{n}]')}\n" for n, line in enumerate(lines)]
    text = f"{HEAD}services:\n{''.join(services)}  b: {{command: [y, '{{port}}']}}\n"
    with pytest.raises(ManifestError) as caught:
        load_manifest(text, "m")
    assert len(caught.value.findings) == len(lines)
    assert [finding.line for finding in caught.value.findings] == [6 + 3 * n for n in range(len(lines))]
