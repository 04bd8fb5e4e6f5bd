"""What a keeper is told at its start, and what it and its outer process say to each other.

The settings are a 0600 file in the node directory, so that nothing long or
private stands in argv. Tests give other role commands and shorter waits here.
"""

from retinue.node.census import build_tags
from retinue.terms.record import Record

KEEPER_SPENT = 4
"""Exit code of a keeper whose agent died more often than its budget."""
KEEPER_LOST = 9
"""Exit code of an outer process whose keeper died unasked."""
NODE_REFUSED = 8
"""Exit code of an outer process that could not use its node directory or start a keeper."""
GATEWAY_SOCKET = "gateway.sock"
"""In the node directory; where the agent tells its gateway who may be called."""


class NodeSettings(Record, frozen=True):
    """Everything a keeper needs; the outer process fills the first group in."""

    run_id: str = ""
    node: str = ""
    node_dir: str = ""
    join_path: str = ""
    """The copy of the join file in the node directory."""
    has_namespace: bool = False
    weaker: str = ""
    """Why there is no namespace, in words; empty with one."""

    agent_argv: tuple[str, ...] = ()
    """`{keeper_fd}` and `{join}` are filled in. Empty: this package's agent."""
    gateway_argv: tuple[str, ...] = ()
    """`{listen_fd}`, `{hop_fd}` (-1 in a run of one node), `{beat_fd}`, `{control_path}` and `{join}` are filled in.
    Empty: this package's gateway."""
    beat_timeout_s: float = 5.0
    """An agent or a gateway that was heard once and is silent for this long is killed and started again."""
    first_beat_s: float = 60.0
    """Until its first beat: a cold shared file system is slow to read an interpreter."""
    agent_limit: int = 3
    """Restarts of the agent since it last lived for `agent_forgiven_s`."""
    agent_forgiven_s: float = 600.0
    gateway_backoff_s: float = 0.1
    gateway_backoff_max_s: float = 5.0
    gateway_forgiven_s: float = 60.0
    """A gateway that lived this long is started again at once."""
    guard_timeout_s: float = 2.5
    """The same of an egress supervisor: services wait for it, and for no longer than 5 s whatever becomes of it."""
    log_limit_bytes: int = 4 * 1024 * 1024
    """agent.log and gateway.log are emptied when they are longer."""
    end_limit_s: float = 8.0
    """How long a keeper kills; shorter than what the outer process waits."""
    keeper_limit_s: float = 10.0
    """How long the outer process waits for its keeper to end before it kills it."""
    hung_limit_s: float = 0.5
    """Each of both where the run directory hangs: what a SIGKILL has not ended by then waits for that."""

    @property
    def tags(self) -> dict[str, str]:
        """The environment that everything the keeper starts carries."""
        return build_tags(self.run_id, self.node)


# --- outer process -> keeper --------------------------------------------------------------


class Said(Record, frozen=True, tag_field="s"):
    """One packet between keeper and outer process."""


class Greeting(Said, frozen=True, tag=True):
    """First packet: who is who on the host."""

    keeper_host_pid: int
    outer_pid: int


class EndAsked(Said, frozen=True, tag=True):
    """End the node."""

    reason: str


class HostPidIs(Said, frozen=True, tag=True):
    """Answer to `HostPidAsked`."""

    pid: int
    host_pid: int
    """0 when nobody can say."""


class HolderIs(Said, frozen=True, tag=True):
    """Answer to `HolderAsked`."""

    port: int
    holder: str


class TasksAre(Said, frozen=True, tag=True):
    """Answer to `TasksAsked`; as `channel.messages.TasksSeen`."""

    signal: str
    told: int
    live: int


class GpusAre(Said, frozen=True, tag=True):
    """Answer to `GpusAsked`."""

    text: str


FromOuter = Greeting | EndAsked | HostPidIs | HolderIs | TasksAre | GpusAre


# --- keeper -> outer process --------------------------------------------------------------


class HostPidAsked(Said, frozen=True, tag=True):
    """Which pid has the process behind this pidfd (the one descriptor) on the host."""

    pid: int


class HolderAsked(Said, frozen=True, tag=True):
    """Who on the host holds 127.0.0.1:port."""

    port: int


class Ending(Said, frozen=True, tag=True):
    """The keeper ends the node, and why."""

    reason: str
    is_hung: bool = False
    """The run directory's file system hangs: what is not dead soon is stuck there."""


class TasksAsked(Said, frozen=True, tag=True):
    """Signal the trainer's Slurm tasks on this node."""

    signal: str
    spared_step: str


class GpusAsked(Said, frozen=True, tag=True):
    """Who on the host has memory of which GPU."""


ToOuter = HostPidAsked | HolderAsked | TasksAsked | GpusAsked | Ending
