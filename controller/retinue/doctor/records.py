"""What was found on a machine (facts) and what follows from it (findings). Says nothing and asks nothing itself."""

from enum import StrEnum

from retinue.terms.record import Record

PARTS = ("keeper", "gateway", "checks", "sandbox")
NEEDS = {"run": ("keeper", "gateway"), "checks": ("checks",), "sandbox": ("sandbox",)}
"""What a person asks for, `--for run`, and the parts of retinue that it is made of."""


class State(StrEnum):
    """How a part of retinue gets on with what was found."""

    OK = "ok"
    """All of it works."""
    FALLBACK = "fallback"
    """It works in another, weaker or slower way, which the finding names."""
    REFUSED = "refused"
    """It does not work; a service that needs it does not start unless it is told to."""


class Trial(Record, frozen=True):
    """One thing that was really tried, in a process that was thrown away."""

    is_ok: bool
    text: str = ""
    """What it answered; when it failed, the step and the kernel's word, `overlay: Operation not permitted`."""


UNTRIED = Trial(False, "not tried")


class Storage(Record, frozen=True):
    """A place on a file system."""

    path: str
    kind: str = ""
    """`ext4`, `tmpfs`, `nfs4`; empty when it could not be asked."""
    free_bytes: int = 0
    size_bytes: int = 0
    free_inodes: int = 0
    reason: str = ""
    """Why it could not be asked."""


class Cgroup(Record, frozen=True):
    """The control group that this process is in."""

    version: str = ""
    """`v1`, `v2`, `hybrid`, or empty for none."""
    path: str = ""
    is_delegated: bool = False
    """Groups of our own can be made below it."""
    pids_max: int | None = None
    """The smallest of it and of those above; None: unlimited."""
    memory_max_bytes: int | None = None


class Facts(Record, frozen=True):
    """One node as a process of this user sees it."""

    node: str
    begun_utc: float = 0.0
    ended_utc: float = 0.0
    """By the node's own clock; between them the probes ran."""
    kernel: str = ""
    architecture: str = ""
    system: str = ""
    """The distribution, in its own words."""
    python: str = ""
    """The interpreter's real path: what an AppArmor profile has to name."""
    user: str = ""
    """Login name; the number where there is no name."""
    is_in_namespace: bool = False
    """Asked from inside a user namespace (below a keeper, in a rootless container): some of the host's limits do not
    show there."""
    is_in_container: bool = False
    settings: dict[str, str] = {}
    """`kernel.pid_max` -> what the kernel says; what this kernel does not have is left out."""
    limits: dict[str, tuple[int, int]] = {}
    """`nproc`, `nofile` -> (soft, hard); -1 is unlimited."""
    trials: dict[str, Trial] = {}
    """See `trials.py` and `tools.py` for the names."""
    programs: dict[str, str] = {}
    """`squashfuse_ll` -> path; what is not in PATH is left out."""
    versions: dict[str, str] = {}
    """The same names -> the first line about their version."""
    subuid_ranges: tuple[tuple[int, int], ...] = ()
    """(first, count) of this user's in /etc/subuid."""
    proc_masks: tuple[str, ...] = ()
    """What is mounted over entries of /proc."""
    lsm: str = ""
    """Security modules that are switched on, `landlock,yama,apparmor`."""
    has_seccomp_filter: bool = False
    """Somebody has confined this process already: a container."""
    landlock_abi: int = 0
    cgroup: Cgroup = Cgroup()
    shm: Storage = Storage("/dev/shm")
    scratch: Storage = Storage("/tmp")
    """$SLURM_TMPDIR, else /tmp."""
    runtime: str = ""
    """Path of the sandbox program; empty: not built."""
    job_id: str = ""
    """Of Slurm; empty outside a job."""

    def find_trial(self, name: str) -> Trial:
        """What came of a trial; one that was left out counts as not tried."""
        return self.trials.get(name, UNTRIED)

    def find_number(self, setting: str) -> int | None:
        """A kernel setting as a number; None when this kernel does not have it or it is none."""
        text = self.settings.get(setting, "")
        return int(text) if text.lstrip("-").isdigit() else None


class Finding(Record, frozen=True):
    """What one probe means for some parts of retinue."""

    probe: str
    """A heading of docs/doctor.md."""
    parts: tuple[str, ...]
    state: State
    saw: str
    """The facts, in short."""
    means: str = ""
    """What is used instead, or why it cannot work."""
    who: str = ""
    """Who can change it: `you` or `your admin`; empty when there is nothing to change."""
    remedy: str = ""
    """The exact change, one line."""


class NodeAnswer(Record, frozen=True):
    """What one node of a run answered."""

    node: str
    facts: Facts | None = None
    error: str = ""
    """Why there are none."""
    clock_offset_s: float | None = None
    """How far the node's clock is ahead of the clock of whoever asked."""
    clock_error_s: float = 0.0
    """How wrong the offset may be, either way."""
