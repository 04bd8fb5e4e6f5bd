"""Templates: parameters and their mistakes, what lies over what, and whose line is shown."""

from pathlib import Path

import pytest

from retinue.errors import ManifestError
from retinue.manifest.load import check_manifest, load_manifest
from retinue.manifest.schema import Manifest, Service
from retinue.manifest.template import Shelf, parse_template

SHIPPED = Path(__file__).parents[2] / "templates"
HEAD = "retinue: 1\nrun: {name: x}\n"

SERVER = """\
template: 1
description: a server
kind: judge
parameters:
  model: {type: path, required: true, description: where the weights are}
  threads: {type: integer, default: 2, min: 1}
  wait: {type: duration, default: 5s, min: 50ms, max: 10m}
  ratio: {type: number, default: 0.5}
  verbose: {type: boolean, default: false}
  flags: {type: list, default: []}
  mode: {type: string, choices: [fast, exact]}
  size: {type: size, min: 1MiB, max: 1TiB}
  share: {type: number, min: 0.1, max: 1, description: how much of it}
  names: {type: list, pattern: "[a-z]+=[a-z]+", example: a=b}
  limits.disk: {type: size, default: 1GiB}
service:
  command: [serve, "{with.model}", "{with.flags}", "-t{with.threads}", "{port}", "{{with.model}}"]
  replicas: 2
  cwd: "{with.mode}"
  env: {RATIO: "{with.ratio}", WAIT: "{with.wait.seconds}", DISK: "{with.limits.disk.bytes}", V: "{with.verbose}"}
  port_reuse: "{with.verbose}"
  restart: {limit: 7, backoff: "{with.wait}"}
  probes: {readiness: {http: /health, period: 3s}}
"""


def shelf(**texts: str) -> Shelf:
    return Shelf({name: (f"team/{name}.yaml", text) for name, text in texts.items()})


def load(service: str, **texts: str) -> Manifest:
    return load_manifest(f"{HEAD}services:\n  a: {service}\n", "m", lambda directories: shelf(server=SERVER, **texts))


def findings(service: str, **texts: str) -> list[str]:
    text = f"{HEAD}services:\n  a: {service}\n"
    return [f.render("m") for f in check_manifest(text, lambda directories: shelf(server=SERVER, **texts))]


def loaded(service: str) -> Service:
    return load(service).services["a"]


def test_parameters_are_typed_spliced_and_left_out_where_they_are_absent() -> None:
    service = loaded("{template: server, with: {model: /m, flags: [-a, '{node}'], limits: {disk: 2KiB}}}")
    assert service.command == ("serve", "/m", "-a", "{node}", "-t2", "{port}", "{{with.model}}")
    assert service.env == {"RATIO": "0.5", "WAIT": "5", "DISK": "2048", "V": "false"}
    assert (service.cwd, service.port_reuse, service.restart.backoff_s) == (None, False, 5.0)
    assert (service.kind, service.template, service.with_) == ("judge", None, {})


def test_keys_beside_the_template_lie_over_it_mapping_by_mapping() -> None:
    service = loaded("{template: server, with: {model: /m}, restart: {limit: 1}, env: {MORE: x}, kind: command}")
    assert (service.restart.limit, service.restart.backoff_s) == (1, 5.0)
    assert list(service.env) == ["RATIO", "WAIT", "DISK", "V", "MORE"]
    assert service.kind == "command"


def test_another_kind_of_probe_or_count_replaces_the_templates_instead_of_fighting_it() -> None:
    service = loaded("{template: server, with: {model: /m}, per_node: all, probes: {readiness: {tcp: true}}}")
    assert service.probes.readiness is not None
    assert (service.probes.readiness.http, service.probes.readiness.tcp) == (None, True)
    assert service.probes.readiness.period_s == 3.0
    assert service.per_node == "all"


PARAMETERS = [
    (
        "{template: server}",
        ["m:4:7: services.a.template: template 'server' needs the parameter 'model'; where the weights are"],
    ),
    (
        "{template: server, with: {modell: /m, model: /m}}",
        ["m:4:32: services.a.with.modell: template 'server' has no parameter 'modell'; did you mean 'model'?"],
    ),
    ("{template: server, with: {model: ''}}", ["m:4:39: services.a.with.model: is an empty path"]),
    (
        "{template: server, with: {model: /m, threads: 2.5, wait: 5, ratio: nan, verbose: no, flags: x, mode: slow, "
        "limits: {disk: 5, inodes: 1}}}",
        [
            "m:4:52: services.a.with.threads: is a whole number, not '2.5'; write it like '4'",
            "m:4:63: services.a.with.wait: '5' has no unit; write '5s', '5m' or '5h'",
            "m:4:73: services.a.with.ratio: is a number, not 'nan'; write it like '0.9'",
            "m:4:87: services.a.with.verbose: is true or false, not 'no'; write 'false'",
            "m:4:98: services.a.with.flags: is a list, not the text 'x'; write [x]",
            "m:4:107: services.a.with.mode: is fast or exact, not 'slow'",
            "m:4:128: services.a.with.limits.disk: '5' has no unit; write '5MiB', '5GiB' or '5B'",
            "m:4:131: services.a.with.limits.inodes: template 'server' has no parameter 'limits.inodes'; "
            "did you mean 'limits.disk'?",
        ],
    ),
    (
        "{template: server, with: {model: /m, threads: 0, wait: 0s, size: 1023KiB, share: 0.05, names: [a=b, 'a b']}}",
        [
            "m:4:52: services.a.with.threads: must be at least 1, not '0'",
            "m:4:61: services.a.with.wait: must be at least 50ms, not '0s'; it is from 50ms to 10m",
            "m:4:71: services.a.with.size: must be at least 1MiB, not '1023KiB'; it is from 1MiB to 1TiB",
            "m:4:87: services.a.with.share: must be at least 0.1, not '0.05'; it is from 0.1 to 1",
            "m:4:100: services.a.with.names: 'a b' has no meaning here; write it like 'a=b'",
        ],
    ),
    (
        "{template: server, with: {model: /m, threads: -3, wait: 11m, size: 2TiB, share: 1.01}}",
        [
            "m:4:52: services.a.with.threads: must be at least 1, not '-3'",
            "m:4:62: services.a.with.wait: must be at most 10m, not '11m'; it is from 50ms to 10m",
            "m:4:73: services.a.with.size: must be at most 1TiB, not '2TiB'; it is from 1MiB to 1TiB",
            "m:4:86: services.a.with.share: must be at most 1, not '1.01'; it is from 0.1 to 1",
        ],
    ),
    (
        "{template: server, with: {model: /m, limits: 1GiB}}",
        ["m:4:51: services.a.with.limits: is a mapping, not '1GiB'"],
    ),
    ("{template: server, with: }", ["m:4:25: services.a.with: is a mapping, not nothing"]),
    (
        "{template: servre, with: {x: y}}",
        ["m:4:17: services.a.template: there is no template 'servre'; did you mean 'server'?"],
    ),
    ("{template: }", ["m:4:7: services.a.template: is text, not nothing"]),
    (
        "{template: server, with: {model: /m}, command: [x]}",
        ["m:4:44: services.a.command: has both 'template' and 'command'; the template brings the command"],
    ),
]


@pytest.mark.parametrize(("service", "expected"), PARAMETERS)
def test_a_wrong_parameter_is_shown_at_the_manifests_own_line(service: str, expected: list[str]) -> None:
    assert findings(service) == expected


@pytest.mark.parametrize(
    ("template", "given", "what"),
    [
        ("checks", "workers: 0", "must be at least 1, not '0'"),
        ("checks", "timeout: 0s", "must be at least 50ms, not '0s'"),
        ("checks", "timeout: 1h", "must be at most 20m, not '1h'"),
        ("checks", "memory: 0B", "must be at least 32MiB, not '0B'"),
        ("checks", "memory: 0", "'0' has no unit"),
        ("checks", "queue: 0", "must be at least 1, not '0'"),
        ("checks", "queue: -1", "must be at least 1, not '-1'"),
        ("checks", "import_limit: 0s", "must be at least 1s, not '0s'"),
        ("checks", "startup_budget: 0s", "must be at least 1s, not '0s'"),
        ("checks", "verifiers: [mine]", "'mine' has no meaning here; write it like 'mine=my_module:check'"),
        ("checks", "socket: a/b", "'a/b' has no meaning here; write it like 'checks.sock'"),
        ("http-server", "startup_budget: 0s", "must be at least 1s, not '0s'"),
    ],
)
def test_a_value_that_no_shipped_template_can_use_is_a_finding_at_its_line(
    template: str, given: str, what: str
) -> None:
    text = (SHIPPED / f"{template}.yaml").read_text()
    more = "    directory: /d\n" if template == "http-server" else ""
    manifest = f"{HEAD}services:\n  a:\n   template: t\n   with:\n{more}    {given}\n"
    found = [f.render("m") for f in check_manifest(manifest, lambda directories: shelf(t=text))]
    line = 8 if more else 7
    name = given.partition(":")[0]
    assert len(found) == 1
    assert found[0].startswith(f"m:{line}:{len(name) + 7}: services.a.with.{name}: ")
    assert what in found[0]


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_quantity_of_a_shipped_template_has_a_smallest_value(path: Path) -> None:
    parameters = parse_template(path.read_text(), path.stem, path.name).model.parameters
    unbounded = [
        name
        for name, parameter in parameters.items()
        if parameter.type in ("integer", "number", "duration", "size") and parameter.min is None
    ]
    assert unbounded == []


def test_a_bad_placeholder_in_a_parameter_is_shown_where_it_was_written() -> None:
    expected = ["m:4:50: services.a.command[2]: unknown placeholder '{prot}'; did you mean '{port}'?"]
    assert findings("{template: server, with: {model: /m, flags: ['{prot}']}}") == expected


def test_a_mistake_in_a_key_that_lies_over_the_template_is_the_manifests_own() -> None:
    expected = ["m:4:57: services.a.env.RATIO: unknown placeholder '{prot}'; did you mean '{port}'?"]
    assert findings("{template: server, with: {model: /m}, env: {RATIO: '{prot}'}}") == expected
    expected = ["m:4:61: services.a.cwd: is text, not a list"]
    assert findings("{template: server, with: {model: /m, mode: fast}, cwd: [x]}") == expected


def test_a_number_too_large_for_a_float_is_refused() -> None:
    expected = ["m:4:50: services.a.with.ratio: '1e999' is too large for a number"]
    assert findings("{template: server, with: {model: /m, ratio: 1e999}}") == expected


def test_a_mistake_a_template_makes_names_the_template_and_its_line() -> None:
    team = "template: 1\ndescription: x\nservice:\n  command: [x]\n  stop: {grace: 5}\n"
    hint = "write '5s', '5m' or '5h'"
    expected = [f"m:4:17: services.a.stop.grace: '5' has no unit (in template team/team.yaml:5:17); {hint}"]
    assert findings("{template: team}", team=team) == expected


def test_a_template_that_cannot_be_read_is_one_line_per_mistake_in_it() -> None:
    team = "template: 1\ndescription: x\nsrevice: {command: [x]}\n"
    assert findings("{template: team, min_ready: 5}", team=team) == [
        "m:4:17: services.a.template: in template team/team.yaml:1:1: service: is missing",
        "m:4:17: services.a.template: in template team/team.yaml:3:1: unknown key 'srevice'; did you mean 'service'?",
        "m:4:34: services.a.min_ready: must be at most 1, the number of replicas, not 5; lower it, or raise replicas",
    ]


TEMPLATE_FILES = [
    (
        "parameters: {Model: {type: path}}\nservice: {command: [x]}",
        "3:14: parameters.Model: 'Model' is not a parameter's name; write it like 'model'",
    ),
    (
        "parameters: {a: {type: int}}\nservice: {command: [x]}",
        "3:24: parameters.a.type: is string, integer, number, "
        "boolean, duration, size, path or list, not 'int'; did you mean 'integer'?",
    ),
    (
        "parameters: {a: {type: integer, default: x}}\nservice: {command: [x]}",
        "3:42: parameters.a.default: is a whole number, not 'x'; write it like '4'",
    ),
    (
        "parameters: {a: {type: path, required: true, default: x}}\nservice: {command: [x]}",
        "3:46: parameters.a.default: a required parameter has no use for a default",
    ),
    (
        "parameters: {model: {type: path}}\nservice: {command: ['{with.modle}']}",
        "4:21: service.command[0]: '{with.modle}' is not a parameter; did you mean 'with.model'?",
    ),
    (
        "parameters: {a: {type: integer, min: 2, default: 1}}\nservice: {command: [x]}",
        "3:50: parameters.a.default: must be at least 2, not '1'",
    ),
    (
        "parameters: {a: {type: duration, min: 5}}\nservice: {command: [x]}",
        "3:39: parameters.a.min: '5' has no unit; write '5s', '5m' or '5h'",
    ),
    (
        "parameters: {a: {type: size, min: 2KiB, max: 1KiB}}\nservice: {command: [x]}",
        "3:46: parameters.a.max: 1KiB is below the smallest value, 2KiB",
    ),
    (
        "parameters: {a: {type: string, max: 5}}\nservice: {command: [x]}",
        "3:37: parameters.a.max: a string has no bounds; integer, number, duration, size have",
    ),
    (
        "parameters: {a: {type: size, pattern: x}}\nservice: {command: [x]}",
        "3:39: parameters.a.pattern: a size has no pattern; string, path, list have",
    ),
    (
        "parameters: {a: {type: path, pattern: '('}}\nservice: {command: [x]}",
        "3:39: parameters.a.pattern: does not compile: missing ), unterminated subpattern at position 0",
    ),
    ("service: {command: [x], template: y}", "3:25: service.template: 'template' does not belong in a template"),
]


@pytest.mark.parametrize(("rest", "expected"), TEMPLATE_FILES)
def test_a_template_file_is_checked_by_itself(rest: str, expected: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_template(f"template: 1\ndescription: x\n{rest}\n", "t", "t.yaml")
    assert str(caught.value) == f"t.yaml:{expected}"


def test_a_directory_of_templates_that_cannot_be_read_is_a_finding_at_its_line() -> None:
    text = f"{HEAD}templates: [ours]\nservices: {{a: {{command: [x]}}}}\n"
    found = check_manifest(text, lambda directories: Shelf({}, dict.fromkeys(directories, "permission denied")))
    assert [f.render("m") for f in found] == ["m:3:13: templates.ours: cannot read 'ours': permission denied"]


def test_a_place_beside_the_per_node_of_a_template_is_told_to_be_a_per_node_of_its_own() -> None:
    every = "template: 1\ndescription: one each\nservice: {command: [x], per_node: all}\n"
    (said,) = findings("{template: every, place: {on: all2}}\nnodes: {all2: {count: 1}}", every=every)
    assert said.startswith("m:4:32: services.a.place.on: not together with the per_node of the template")
    assert said.endswith("write 'per_node: all2' instead, for one on each node of 'all2'")
