"""Ask Slurm about the run's own job, rarely and for a bounded time; and the two things we ever tell it.

pyslurm first where it is installed, else and after its first failure the command line; why is said once. Whatever goes
wrong is `Unknown`: a silent slurmctld is never taken for a job that is gone. Blocks: for threads and short commands.
"""

import time
from collections.abc import Callable, Mapping

from retinue.slurm.answers import NOT_KNOWN, JobState, KillTimes, Unknown, parse_job, parse_kill_times
from retinue.slurm.commands import ask_slurm
from retinue.slurm.pyslurm_job import NO_SUCH_JOB, ask_pyslurm, is_pyslurm_there

REST_S = 60.0
"""At most one question about the job in this time; asked sooner, the last answer is given again."""


class SlurmDesk:
    """All questions of one process to Slurm."""

    def __init__(
        self, env: Mapping[str, str], say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._env = env
        self._say = say
        self._clock = clock
        self._has_pyslurm = is_pyslurm_there()
        self._last: dict[str, tuple[float, JobState | Unknown]] = {}

    def read_job_state(self, job_id: str) -> JobState | Unknown:
        """Ask for the job; within a minute of the last question, that one's answer."""
        asked = self._last.get(job_id)
        now_s = self._clock()
        if asked is not None and now_s - asked[0] < REST_S:
            return asked[1]
        answer = self._ask_job(job_id)
        self._last[job_id] = (now_s, answer)
        return answer

    def read_end_utc(self, job_id: str) -> float | Unknown | None:
        """Ask when the job ends, in epoch seconds; None: it has no time limit."""
        answer = self.read_job_state(job_id)
        if isinstance(answer, Unknown):
            return answer
        return Unknown(f"Slurm knows no job {job_id}") if answer.state == NOT_KNOWN else answer.end_utc

    def read_kill_wait(self, partition: str = "") -> KillTimes | Unknown:
        """Ask how long Slurm waits between its signals; the partition's notice is 0 where it does not say."""
        config = ask_slurm(["scontrol", "show", "config"], self._env)
        if isinstance(config, Unknown):
            return config
        shown = ask_slurm(["scontrol", "show", "partition", "-o", partition], self._env) if partition else ""
        return parse_kill_times(config, "" if isinstance(shown, Unknown) else shown)

    def requeue_job(self, job_id: str) -> Unknown | None:
        """Queue the job again; it ends now. None: Slurm took it; else why not."""
        answer = ask_slurm(["scontrol", "requeue", job_id], self._env)
        return answer if isinstance(answer, Unknown) else None

    def cancel_job(self, job_id: str) -> Unknown | None:
        """End the whole job. None: Slurm took it; else why not."""
        answer = ask_slurm(["scancel", job_id], self._env)
        return answer if isinstance(answer, Unknown) else None

    def _ask_job(self, job_id: str) -> JobState | Unknown:
        if self._has_pyslurm:
            answer = ask_pyslurm(job_id, self._env)
            if isinstance(answer, JobState):
                return answer
            self._has_pyslurm = False
            self._say(f"pyslurm is installed and not used: {answer.why}; Slurm's commands are asked instead")
        said = ask_slurm(["scontrol", "show", "job", "-o", job_id], self._env)
        if isinstance(said, Unknown):
            return JobState(NOT_KNOWN) if NO_SUCH_JOB in said.why else said
        return parse_job(said)
