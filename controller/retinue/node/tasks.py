"""The trainer's Slurm tasks on this node: found in the host's /proc by the outer process, and signalled once each.

A task is a child of a slurmstepd, is ours by uid, job and step, and is nothing that retinue itself has started.
slurmstepd belongs to root, so where /proc hides other users' processes its children are known by their missing parent.
Never by name of the program, never a task's own children: what Slurm signals when it stops a task is for it to pass on.
"""

import json
import os
import select
import signal
from collections.abc import Collection, Mapping

from retinue.node.census import LAUNCH_TAG, RUN_ID
from retinue.node.scan import Process, is_running, read_processes, read_words, send_signal

STEPD = "slurmstepd"
LOOK_S = 1.0
"""For reading the environment of what may be a task: one that is stuck in a file system would keep us for ever."""
_ANSWER_BYTES = 1 << 16


class Tasks:
    """What was found of them, and which signals each has had."""

    def __init__(self, run_id: str, env: Mapping[str, str]) -> None:
        self._run_id = run_id
        self._job = env.get("SLURM_JOB_ID", "")
        self._own_step = env.get("SLURM_STEP_ID", "")
        self._known: dict[tuple[int, int], Process] = {}
        """(pid, start) -> a task."""
        self._told: dict[int, set[tuple[int, int]]] = {}
        """Signal -> who has had it."""

    def tell(self, number: int, spared_step: str = "") -> tuple[int, int]:
        """Signal every task that has not had this signal yet.

        Shape: (how many have had it so far, how many run now).
        """
        if not self._job:
            return 0, 0
        self._look({self._own_step, spared_step})
        told = self._told.setdefault(number, set())
        live = {key: task for key, task in self._known.items() if is_running(task)}
        for key, task in live.items():
            if key not in told and send_signal(task, number):
                told.add(key)
        return len(told), sum(map(is_running, live.values()))

    def _look(self, spared_steps: Collection[str]) -> None:
        processes = read_processes()
        uid = os.geteuid()
        fresh = [
            process
            for process in processes.values()
            if (process.pid, process.start) not in self._known
            and not process.is_dead
            and _may_be_task(process, processes)
            and _find_owner(process.pid) == uid
        ]
        if not fresh:
            return
        found = set(self._ask(fresh, spared_steps))
        self._known |= {(process.pid, process.start): process for process in fresh if process.pid in found}

    def _ask(self, fresh: Collection[Process], spared_steps: Collection[str]) -> list[int]:
        """Read environments in a child of ours, for a bounded time; what does not answer is no task."""
        near, far = os.pipe()
        # A signal before the child is another process would run the caller's handler in it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _answer(far, [p.pid for p in fresh if self._is_task(p.pid, spared_steps)])
        except OSError:
            return []
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(far)
        try:
            poller = select.poll()
            poller.register(near, select.POLLIN)
            is_there = bool(poller.poll(LOOK_S * 1000))
            os.kill(pid, signal.SIGKILL)
            found: list[int] = json.loads(os.read(near, _ANSWER_BYTES) or b"[]") if is_there else []
            return found
        finally:
            os.close(near)

    def _is_task(self, pid: int, spared_steps: Collection[str]) -> bool:
        words = (word.decode(errors="replace").partition("=") for word in read_words(pid, "environ"))
        return is_trainer_task({name: value for name, _, value in words}, self._job, spared_steps, self._run_id)


def is_trainer_task(env: Mapping[str, str], job: str, spared_steps: Collection[str], run_id: str) -> bool:
    """Say whether a task with this environment belongs to the trainer.

    Shape: not of a spared step, not what keeps the nodes of any run, not of another run in the same job.
    """
    step = env.get("SLURM_STEP_ID", "")
    is_step = env.get("SLURM_JOB_ID") == job and step != "" and step not in spared_steps
    return is_step and LAUNCH_TAG not in env and env.get(RUN_ID, run_id) == run_id


def _may_be_task(process: Process, processes: Mapping[int, Process]) -> bool:
    parent = processes.get(process.ppid)
    return process.ppid > 1 if parent is None else parent.name == STEPD


def _find_owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _answer(far: int, found: list[int]) -> None:
    """Be the child: say it, and end."""
    try:
        os.write(far, json.dumps(found).encode())
    finally:
        os._exit(0)
