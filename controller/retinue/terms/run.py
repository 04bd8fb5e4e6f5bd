"""Names of the files of a run, and the record the pre-flight leaves for the controller.

The run directory is shared by all nodes; the node directory is private to one.
"""

from retinue.terms.record import Record

MANIFEST = "manifest.yaml"
SCRIPT = "submit.sbatch"
JOB = "job.json"
CONTROL = "control.json"
PLAN = "plan.json"
STATUS = "status.json"
ENDPOINTS = "endpoints.json"
VERDICT = "verdict.json"
EVENTS = "events.jsonl"
EGRESS = "egress.jsonl"
OUTAGES = "outages.jsonl"
NONCE = "nonce"
LOCK = "lock"
JOIN = "join"
LOGS = "logs"
CURRENT = "current"
LATEST = "latest"
SUBMITTED = "submitted"
TOKEN = "token"


class RunRecord(Record, frozen=True):
    """What `retinue run` decided before it became the stub; `<node dir>/controller/run.json`, 0600."""

    run_id: str
    """12 lower-case hex digits."""
    name: str
    attempt: int
    run_dir: str
    attempt_dir: str
    node_dir: str
    start_dir: str
    """Where the command was given; cwd of the trainer and of services."""
    trainer_argv: tuple[str, ...] = ()
    is_detached: bool = False
    """`up`: no trainer, and the terminal is gone."""
    listen_host: str = "127.0.0.1"
    """`::`: every address of this host, because other nodes dial it."""
    slurm_version: str = ""
    """`22.05.8` of the srun that starts the nodes; empty: the one node is a child of the stub."""
    job_id: str = ""
    """Slurm's; empty outside a job."""
    requeue_on: tuple[str, ...] = ()
    """`run.requeue.on`: ends after which the stub has the job queued again; empty: none."""
    requeue_max: int = 0
    started_utc: float = 0.0
    python: str = ""
    version: str = ""
    controller_argv: tuple[str, ...] = ()
    """What the stub starts as controller, run.json and descriptors appended; empty: this package's. For tests."""
    beat_timeout_s: float = 20.0
    """Silence of the controller after which the stub kills it and starts it again."""
