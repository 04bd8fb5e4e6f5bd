"""The manifest as models. What a person may write; every default is here.

Frozen, and complete in itself: loading fills nothing in from the machine it runs on.
The strings under the fields become the JSON Schema's descriptions and docs/manifest.md.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from retinue.manifest.scalars import Duration, SignalName, Switch, Text, Texts, Whole, parse_count, parse_whole
from retinue.manifest.service import (
    CONFIG,
    Dependency,
    Egress,
    EgressRule,
    HttpCheck,
    Place,
    Probe,
    Probes,
    Restart,
    Service,
    Stop,
    parse_secret,
)

__all__ = [
    "ALL_NODES",
    "Dependency",
    "Egress",
    "Group",
    "HttpCheck",
    "Launch",
    "Manifest",
    "NodeRules",
    "Place",
    "Probe",
    "Probes",
    "Requeue",
    "Restart",
    "Run",
    "Service",
    "Stop",
    "Trainer",
    "TrainerStop",
    "parse_secret",
]

RUN_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

ALL_NODES = "all"
"""The group that always exists: every node of the allocation."""


class Requeue(BaseModel):
    """After which ends a Slurm job is queued again, as the next attempt of the same run."""

    model_config = CONFIG

    on: Annotated[tuple[Literal["timeout", "preempted", "node_fail"], ...], Field(json_schema_extra={"minItems": 1})]
    """`timeout`: the job's time was up. `preempted`: another job took its nodes. `node_fail`: a node was lost. Never
    after the trainer's own end, a `scancel`, or `retinue down`."""
    max: Annotated[Whole, Field(ge=1, le=1000)] = 3
    """Attempts after the first one, whatever ended them."""


class Run(BaseModel):
    """The run as a whole."""

    model_config = CONFIG

    name: Annotated[
        Text, Field(pattern=RUN_NAME_PATTERN), WithJsonSchema({"type": "string", "pattern": RUN_NAME_PATTERN})
    ]
    """Name of the run; part of the run directory's name."""
    drain_s: Duration = 120.0
    """How long before the allocation's end the run begins to stop."""
    hold_s: Duration = 900.0
    """How long a request waits while nothing of its service is ready."""
    join_timeout_s: Duration = 120.0
    """How long nodes may take to join before the run gives up (exit 5)."""
    orphan_grace_s: Duration = 60.0
    """An agent that has not heard the controller for this long ends its node."""
    requeue: Requeue | None = None
    """When the Slurm job is queued again. Left out: never by us; the site may do so after a lost node."""


class Group(BaseModel):
    """A named slice of the allocation's nodes, taken in order."""

    model_config = CONFIG

    count: Annotated[
        int | str,
        BeforeValidator(parse_count),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "rest"}]}),
    ]
    """Number of nodes, or `rest`: what the other groups leave."""


class TrainerStop(BaseModel):
    """How the trainer is asked to end before it is killed."""

    model_config = CONFIG

    signal: SignalName = "TERM"
    """Name without SIG."""
    grace_s: Duration = 60.0
    """Wait between the signal and KILL; longer than a service's, because a trainer may write a checkpoint."""


class Trainer(BaseModel):
    """The user's command: where it runs and how it is stopped. The command itself follows `--`."""

    model_config = CONFIG

    on: Text | None = None
    """Group its nodes are. Left out: all nodes."""
    stop: TrainerStop = TrainerStop()
    """How it is asked to end."""
    egress: EgressRule = None
    """Only `off`: the trainer is not guarded. Anything else is a finding."""


class NodeRules(BaseModel):
    """What every node of the run does."""

    model_config = CONFIG

    namespace: Switch = True
    """`on`: services live below a keeper in namespaces of its own. `off`: for setuid helpers and newuidmap ranges."""


class Launch(BaseModel):
    """How the agents are started."""

    model_config = CONFIG

    python: Text | None = None
    """Python interpreter on the nodes. Left out: the one that runs the controller."""


class Manifest(BaseModel):
    """A whole manifest. After loading, templates are expanded and every default is filled in."""

    model_config = CONFIG

    retinue: Annotated[Literal[1], BeforeValidator(parse_whole)]
    """Version of this format: 1."""
    run: Run
    """Its name, and the times that hold for all of it."""
    nodes: dict[str, Group] = {}
    """Groups of nodes by name, in order. Left out: only `all`, which always names every node."""
    trainer: Trainer = Trainer()
    """The user's command."""
    services: Annotated[dict[str, Service], Field(min_length=1)]
    """The services by name."""
    templates: Texts = ()
    """Further directories with templates, searched in order before the shipped ones; relative to the manifest."""
    node: NodeRules = NodeRules()
    """What every node does."""
    launch: Launch = Launch()
    """How the agents on the nodes are started."""
