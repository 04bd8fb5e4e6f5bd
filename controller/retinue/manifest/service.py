"""One service of a manifest, as models: what may be written, with which defaults.

Attribute names carry units (`grace_s`); the key in YAML is the name without the
unit (`grace`). A model never looks at another service: that is `check`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, WrapValidator

from retinue.manifest.calls import Gateway
from retinue.manifest.scalars import (
    Duration,
    Flag,
    Port,
    PositiveDuration,
    SignalName,
    Size,
    Text,
    Texts,
    Whole,
    parse_tcp,
)
from retinue.manifest.shorthand import AlsoAccepts, has_placeholder, spread_dependencies, spread_http, yaml_key
from retinue.terms.replica import OnExhausted

CONFIG = ConfigDict(frozen=True, extra="forbid", alias_generator=yaml_key, use_attribute_docstrings=True)

Kind = Literal["judge", "retrieval", "user-simulator", "checks", "sandbox", "command"]
Condition = Literal["started", "ready", "completed"]
ExitCode = Annotated[Whole, Field(ge=0, le=255)]

_SECRET = re.compile(r"(?P<kind>env|file|run):(?!//)(?P<where>.*)", re.DOTALL)


def parse_secret(value: str) -> tuple[str, str] | None:
    """Split `env:NAME`, `file:PATH` or `run:token` into (`env` | `file` | `run`, where); None for a plain value.

    `file://...` is a URL and stays a plain value.
    """
    match = _SECRET.fullmatch(value)
    return (match["kind"], match["where"]) if match else None


class HttpCheck(BaseModel):
    """An HTTP GET; 200-399 passes."""

    model_config = CONFIG

    path: Annotated[Text, Field(pattern=r"^/"), WithJsonSchema({"type": "string", "pattern": "^/"})]
    """Path with the leading slash, `/health`."""
    port: Port | None = None
    """Port to ask. Left out: the replica's own port."""


class Probe(BaseModel):
    """How one probe asks, and how many equal answers in a row count. Exactly one of http, tcp, exec, progress."""

    model_config = CONFIG

    http: Annotated[
        HttpCheck | None, BeforeValidator(spread_http), AlsoAccepts(({"type": "string", "pattern": "^/"},))
    ] = None
    """Ask with an HTTP GET: a path, or `{path, port}`. 200-399 passes."""
    tcp: Annotated[
        int | bool | None,
        BeforeValidator(parse_tcp),
        WithJsonSchema({"anyOf": [{"const": True}, {"type": "integer", "minimum": 1, "maximum": 65535}]}),
    ] = None
    """Connect and close: `true` for the replica's own port, or a port number."""
    exec: Texts | None = None
    """Run this list in the replica's environment; exit code 0 passes."""
    progress: Literal["vllm", "sglang", "llamacpp"] | None = None
    """Liveness only: read this engine's `/metrics`. Work without a token for `stall` fails; no work passes."""
    stall_s: PositiveDuration = 60.0
    """Progress only: how long work may go without a token."""
    period_s: PositiveDuration = 10.0
    """Time between two questions."""
    timeout_s: PositiveDuration = 1.0
    """No answer after this long is a failure."""
    failures: Annotated[Whole, Field(ge=1)] = 3
    """Failures in a row that change the verdict."""
    successes: Annotated[Whole, Field(ge=1)] = 1
    """Successes in a row that change the verdict. Startup and liveness: always 1, as in Kubernetes."""
    initial_delay_s: Duration = 0.0
    """Wait before the first question."""
    budget_s: PositiveDuration | None = None
    """Startup only: how long a start may take. Left out: failures x period."""
    budget_max_s: PositiveDuration | None = None
    """Startup only: the budget goes on up to this while loading makes progress: log, memory, reads. Left out: not."""


class Probes(BaseModel):
    """Kubernetes' three probes, with Kubernetes' meanings."""

    model_config = CONFIG

    startup: Probe | None = None
    """Gates the other two until it passes once; running out of its budget ends the incarnation."""
    readiness: Probe | None = None
    """Decides whether callers are sent here; never restarts anything."""
    liveness: Probe | None = None
    """Its failure restarts the replica; never moves traffic by itself."""

    def present(self) -> list[tuple[str, Probe]]:
        """The probes that are there, by name, in the order above."""
        named = (("startup", self.startup), ("readiness", self.readiness), ("liveness", self.liveness))
        return [(name, probe) for name, probe in named if probe is not None]


class Place(BaseModel):
    """Where replicas go, and what each takes from its node."""

    model_config = CONFIG

    on: Text | None = None
    """Group of nodes. Left out: `all`."""
    gpus: Annotated[Whole, Field(ge=0)] = 0
    """Whole GPUs per replica; 0 hides every GPU from it."""
    cpus: Annotated[Whole, Field(ge=1)] | None = None
    """CPUs per replica that placement counts. Left out: not counted."""
    memory_bytes: Size | None = None
    """Memory per replica that placement counts, `16GiB`. Left out: not counted."""
    strategy: Literal["spread", "pack"] = "spread"
    """`spread`: the node with the most free first; `pack`: fill one node before the next."""
    share_gpus: Flag = False
    """`true`: the GPUs may also be given to other services that say so."""


class Restart(BaseModel):
    """When a replica that ended is launched again."""

    model_config = CONFIG

    backoff_s: Duration = 10.0
    """First wait; doubles with each failure since the last stable period (kubelet's curve)."""
    backoff_max_s: Duration = 300.0
    """Longest wait."""
    limit: Annotated[Whole, Field(ge=0)] = 5
    """Failures allowed since the last stable period; the next one exhausts the budget."""
    stable_for_s: PositiveDuration = 600.0
    """Ready for this long without a break forgives all failures."""
    on_exhausted: OnExhausted = OnExhausted.DEGRADE
    """`degrade`: the run goes on without it; `hold`: requests wait for an operator; `fail_run`: the run ends with 5."""
    success: tuple[ExitCode, ...] | None = None
    """Exit codes that mean done. Left out: `[0]` for a service without `{port}` and without a port probe, else none."""
    no_restart: tuple[ExitCode, ...] = (3,)
    """Exit codes that mean trying again will not help (uvicorn exits 3 when its start fails)."""


class Dependency(BaseModel):
    """One thing a service waits for."""

    model_config = CONFIG

    condition: Condition = "ready"
    """`started`: exec succeeded; `ready`: callers are sent to it; `completed`: it exited with a success code."""
    required: Flag = True
    """`false`: a dependency that failed for good does not hold this service back."""
    restart: Flag = False
    """`true`: when the dependency gets a new incarnation, this service is restarted too."""


class Stop(BaseModel):
    """How a replica is asked to end before it is killed."""

    model_config = CONFIG

    signal: SignalName = "TERM"
    """Name without SIG."""
    grace_s: Duration = 30.0
    """Wait between the signal and KILL."""


class Egress(BaseModel):
    """What may be reached beyond the allocation's own nodes."""

    model_config = CONFIG

    udp: Literal["none", "loopback", "full"] = "none"
    """UDP sockets: `none`, only to `loopback`, or `full` (then checked per address)."""
    allow: Texts = ()
    """`CIDR`, `CIDR:PORT` or `HOST:PORT` that may be reached too."""


def _switch_off(value: Any, handler: Any) -> Any:
    return None if value == "off" else handler(value)


EgressRule = Annotated[
    Egress | None,
    WrapValidator(_switch_off),
    PlainSerializer(lambda rule: "off" if rule is None else rule.model_dump(by_alias=True, exclude_defaults=True)),
    AlsoAccepts(({"const": "off"},)),
]
"""None is `off`: not guarded."""


class Service(BaseModel):
    """One entry of `services`: a program, how many of it, where, and how it is kept healthy."""

    model_config = CONFIG

    template: Text | None = None
    """Name of a template that fills in the rest. Exactly one of template and command; expanded when loaded."""
    with_: dict[str, Any] = {}
    """Parameters of the template."""
    command: Texts = ()
    """What to run, as a list: no shell is involved."""
    kind: Kind = "command"
    """What it is to the run; templates set it."""
    replicas: Annotated[Whole, Field(ge=1, le=10_000)] = 1
    """Copies. Not together with per_node."""
    per_node: Text | None = None
    """One replica on each node of this group. Left out: `replicas` copies."""
    place: Place = Place()
    """Where replicas go, and what each takes."""
    restart: Restart = Restart()
    """When and how often a replica is launched again."""
    depends_on: Annotated[
        dict[str, Dependency],
        BeforeValidator(spread_dependencies),
        AlsoAccepts(
            (
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"enum": ["started", "ready", "completed"]}},
            )
        ),
    ] = {}
    """Services to wait for: a list (condition `ready`), or name to condition, or name to mapping."""
    env: dict[str, Text] = {}
    """Environment: name to value. `env:NAME`, `file:/PATH` and `run:token` are secrets: taken from the caller's
    environment, read on the node, or the run's own token, which the gateway then sends with every request."""
    cwd: Text | None = None
    """Working directory. Left out: where the command was given."""
    keep_env: Texts = ()
    """Names (or patterns with `*`) of variables that are kept though they are usually dropped: `SLURM_*`, `RANK`."""
    probes: Probes = Probes()
    """How its health is asked. Left out: `tcp: true` readiness when it has `{port}`, else ready when started."""
    stop: Stop = Stop()
    """How a replica is asked to end, and how long it may take."""
    min_ready: Annotated[Whole, Field(ge=0)] = 1
    """Ready replicas that make the service ready for dependants and the trainer; 0 gates nothing."""
    gateway: Gateway = Gateway()
    """How its URL treats callers: bounds, affinity, timeouts, the status of an outage."""
    egress: EgressRule = Egress()
    """What it may reach beyond the allocation; `off`: not guarded."""
    port_reuse: Flag = True
    """`true`: its port is reserved until it listens; `false`: released before it starts, for servers that refuse."""
    listen: Literal["loopback", "node"] = "loopback"
    """What `{host}` is: 127.0.0.1, or the node's own address."""
    protocol: Literal["http", "tcp"] = "http"
    """`http`: a stable URL by the gateway; `tcp`: its current address in endpoints.json, no promise."""
    okay_delay_s: Duration = 1.0
    """An exit sooner than this after exec is a failed start and reported with its last lines."""

    @property
    def has_port(self) -> bool:
        """A port is reserved for it: `{port}` is used, or a probe asks the replica's own port."""
        return has_placeholder(self._texts, "port") or any(
            probe.tcp is True or probe.progress or (probe.http is not None and probe.http.port is None)
            for _, probe in self.probes.present()
        )

    @property
    def has_inner_port(self) -> bool:
        """A block of ports is set aside for it: `{inner_port}` is used."""
        return has_placeholder(self._texts, "inner_port")

    @property
    def _texts(self) -> tuple[str, ...]:
        probed = (word for _, probe in self.probes.present() for word in probe.exec or ())
        return (*self.command, *self.env.values(), *probed)

    @property
    def success(self) -> tuple[int, ...]:
        """Exit codes that mean done, with the default filled in."""
        if self.restart.success is not None:
            return self.restart.success
        has_port_probe = any(probe.tcp or probe.http or probe.progress for _, probe in self.probes.present())
        return () if self.has_port or has_port_probe else (0,)
