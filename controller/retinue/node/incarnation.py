"""One incarnation from its launch order to its one Exited or LaunchRefused.

Never two answers, never none: every wait here is bounded, and what the keeper
says late is cleaned up without a word. Decides nothing but how to carry out an order.
"""

import asyncio
import signal
from typing import Any

from retinue.errors import EdgeError, TransientError
from retinue.lifecycle.streak import Change, ProbeState, build_probe_state
from retinue.node.capture import Capture, LogFiles
from retinue.node.ladder import End, Leader, StopClock, Swept, build_exited, judge_port, stop_group, sweep_tree
from retinue.node.launching import build_spawn_error, prepare
from retinue.node.memory import Remembered, resume_probes
from retinue.node.orders import Reaped, Release, Signal, Spawned, SpawnRefused
from retinue.node.prober import Prober
from retinue.node.questions import Questions, Subject
from retinue.node.redact import Redactor
from retinue.node.site import Site
from retinue.node.startup_watch import Start, watch_startup
from retinue.node.tree import build_tree
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import replace
from retinue.terms.replica import Exited, LaunchRefused, LivenessLost, ReadinessChanged, Started, StartupLost

SPAWN_LIMIT_S = 60.0
"""For fork and exec; a binary on a hung file system takes for ever."""
REFUSED_WAIT_S = 5.0
"""For the keeper's last word about a child that was killed before its exec."""


class Incarnation:
    """One launch of one replica, on the running loop."""

    def __init__(self, site: Site, spec: LaunchSpec) -> None:
        self.site = site
        self.spec = spec
        self.port: int | None = None
        self.pid = 0
        self.host_pid = 0
        self.started_s = 0.0
        self.is_running = False
        self.exited: Exited | None = None
        self.refused: LaunchRefused | None = None
        self.over = asyncio.Event()
        """Answered: nothing of it runs."""
        self.liveness_lost = ""
        self._waits_for = ""
        self.prober: Prober | None = None
        self.stop_clock: StopClock | None = None
        self._loop = asyncio.get_running_loop()
        self._held: set[str] = set()
        """Names of what the keeper holds for it."""
        self._is_known_to_keeper = False
        self._redactor = Redactor(())
        self._stop_asked = asyncio.Event()
        self._spawned: asyncio.Future[Spawned | SpawnRefused] = self._loop.create_future()
        self._reaped: Reaped | None = None
        self._reaped_s = 0.0
        self._gone = asyncio.Event()

    def describe_failing(self) -> str:
        """Say why what runs, or is to run, is not ready; empty when it is, or is over."""
        return self.prober.describe_failing() if self.prober is not None and self.is_running else self._waits_for

    # --- what happens to it ------------------------------------------------------

    def stop(self, number: int, grace_s: float) -> None:
        """Run the ladder; asked again, only a sooner end of the grace counts."""
        deadline_s = self._loop.time() + grace_s
        if self.stop_clock is None:
            self.stop_clock = StopClock(number, deadline_s)
        else:
            self.stop_clock.shorten(deadline_s)
        self._stop_asked.set()
        self.site.look_at_run_dir()
        self.site.on_change()

    def take(self, packet: Spawned | SpawnRefused | Reaped) -> None:
        """Take the keeper's word."""
        if isinstance(packet, Reaped):
            self._reaped, self._reaped_s = packet, self._loop.time()
            self._gone.set()
            if self.over.is_set():
                self.forget()  # it was given up; nobody waits for this any more
        elif not self._spawned.done():
            self._spawned.set_result(packet)
        elif isinstance(packet, Spawned) and self.refused is not None:
            self._signal_group(signal.SIGKILL)

    def tell_again(self) -> None:
        """Repeat the last answer: whoever orders twice has not heard it."""
        answer = self.exited or self.refused
        if answer is not None:
            self.site.report(self.spec.replica, answer)
        elif self.is_running:
            self._report_started()

    def recall_end(self, seen: Remembered) -> None:
        """Know how it ended: an earlier agent said so already."""
        self.exited, self.refused = seen.exited, seen.refused
        self.is_running = False
        self.over.set()

    def forget(self) -> None:
        """Let the keeper forget it."""
        if self._is_known_to_keeper:
            self._is_known_to_keeper = False
            self.site.keeper.send(Release(self.spec.replica, self.spec.incarnation))

    # --- its life ------------------------------------------------------------------

    async def run(self) -> None:
        """Launch it and live with it until it is over."""
        try:
            subject, pipe = await self._launch()
        except EdgeError as error:
            self._refuse(str(error), retryable=isinstance(error, TransientError))
            return
        self.started_s = self._loop.time()
        probes = build_probe_state(self.spec.probes, self.spec.incarnation, self.started_s)
        self._report_started()
        await self._live(subject, pipe, probes)

    async def adopt(self, subject: Subject, pipe: int, held: set[str], seen: Remembered | None) -> None:
        """Live on with what an earlier agent launched (its pid is in the tree); repeats nothing that was said."""
        self._held = held
        self.started_s = seen.started_s if seen else self._loop.time()
        self.port = seen.port if seen and seen.port else subject.note.port
        self.liveness_lost = seen.liveness_lost if seen else ""
        if seen is not None and seen.stop_number:
            self.stop_clock = StopClock(seen.stop_number, seen.stop_deadline_s)
            self._stop_asked.set()
        await self._live(subject, pipe, resume_probes(self.spec, self.started_s, seen))

    async def _launch(self) -> tuple[Subject, int]:
        """Spawn it; gives what is asked from now on, and the read end of its log."""
        self._check_not_stopped()
        prepared = await prepare(self.site, self.spec, self._note_wait)
        try:
            self._check_not_stopped()
            self._held = set(prepared.send(self.site))
            self._is_known_to_keeper = True
            self.own(await self._wait_spawned(), prepared.note.port)
        finally:
            prepared.close(keeps_log=self.is_running)
        tree = build_tree(self.site, self.spec, self.pid, prepared.log_read)
        return Subject(prepared.note, prepared.body, tree), prepared.log_read

    def _note_wait(self, cause: str) -> None:
        self._check_not_stopped()
        self._waits_for = cause

    def _check_not_stopped(self) -> None:
        if self._stop_asked.is_set():
            raise TransientError(f"{self.spec.replica} was stopped before it was started")

    async def _wait_spawned(self) -> Spawned:
        """Wait for the keeper.

        Errors: what the keeper's refusal means; TransientError when the exec does not end, or was stopped.
        """
        limit_s = self._loop.time() + SPAWN_LIMIT_S
        stop_asked = asyncio.ensure_future(self._stop_asked.wait())
        waits: list[asyncio.Future[Any]] = [self._spawned, stop_asked]
        try:
            await asyncio.wait(waits, timeout=SPAWN_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._spawned.done() and self.stop_clock is not None:
                left_s = min(self.stop_clock.deadline_s, limit_s) - self._loop.time()
                await asyncio.wait({self._spawned}, timeout=max(left_s, 0.0))
        finally:
            stop_asked.cancel()
        if not self._spawned.done():
            self._signal_group(signal.SIGKILL)
            await asyncio.wait({self._spawned}, timeout=REFUSED_WAIT_S)
        if not self._spawned.done():
            raise TransientError(f"cannot start {self.spec.argv[0]!r}: its exec did not end (hung file system?)")
        answer = self._spawned.result()
        if isinstance(answer, SpawnRefused):
            self._is_known_to_keeper = False
            raise build_spawn_error(answer)
        return answer

    def own(self, spawned: Spawned, port: int | None) -> None:
        """Note that it runs, and as which pid."""
        self.pid, self.host_pid, self.port = spawned.pid, spawned.host_pid, port
        self.is_running = self._is_known_to_keeper = True

    async def _live(self, subject: Subject, pipe: int, probes: ProbeState) -> None:
        """Ask, capture, and wait for the end; then end all of it and say so once."""
        secrets = [*self.spec.secrets.values(), self.site.join.token]
        secrets += [subject.body.env.get(name, "") for name in self.spec.secret_files]
        self._redactor = Redactor(secrets)
        capture = Capture(pipe, LogFiles(self.spec.log_path, self.site.writer), self._redactor)
        questions = Questions(self.site, subject, self.port)
        self.prober = prober = Prober(probes, questions.ask, self._on_probed)
        watches = [asyncio.create_task(questions.watch_port(self._on_port_told, self._release_port))]
        if not probes.is_startup_passed:
            start = Start(self.spec, subject.tree, capture, prober, self._on_start_lost)
            watches.append(asyncio.create_task(watch_startup(self.site, start)))
        capture.start()
        prober.start()
        self.site.on_change()
        try:
            await self._wait_for_end()
            prober.cancel()
            was_asked = self.stop_clock is not None
            is_hard = False
            if self.stop_clock is not None:
                leader = Leader(self._signal_group, self._gone)
                is_hard = await stop_group(self.stop_clock, leader, subject.tree, self.site.threads, self._is_hung)
            self.site.on_down(self.spec.replica, self.spec.incarnation, "it exited on its node")
            await prober.wait_ended()
            swept = await self._sweep(subject)
        finally:
            prober.cancel()
            for watching in watches:
                watching.cancel()
            capture.finish()
        self._finish(
            End(self._reaped, swept, was_asked, is_hard, self._reaped_s - self.started_s, capture.last_lines())
        )

    async def _sweep(self, subject: Subject) -> Swept:
        try:
            return await sweep_tree(subject.tree, self.site.threads, self._is_hung)
        except TransientError:  # /proc itself hangs: something of it sits in the kernel for good
            return Swept(left=(self.pid,))

    def _is_hung(self) -> bool:
        """Whether waiting for a killed process is in vain: it may stand in the run directory's file system."""
        return self.site.writer.is_hung

    async def _wait_for_end(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._gone, self._stop_asked)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # --- what it says ----------------------------------------------------------------

    def _finish(self, end: End) -> None:
        """Say that it is over: exactly once, when nothing of it runs any more."""
        if self.spec.wants_port and self.port is not None:
            was_reserved = "port" in self._held
            is_taken, last_lines = judge_port(self.port, end.last_lines, was_reserved=was_reserved)
            end = replace(end, last_lines=last_lines)
            if is_taken:
                self.site.ports.avoid(self.port)
        self.exited = build_exited(self.spec, end, (self.pid, self.host_pid), has_namespace=self.site.has_namespace)
        self.is_running = False
        if self._held:
            self.site.keeper.send(Release(self.spec.replica, self.spec.incarnation, tuple(sorted(self._held))))
            self._held.clear()
        self._answer(self.exited)

    def _refuse(self, cause: str, *, retryable: bool) -> None:
        self.refused = LaunchRefused(self.spec.incarnation, cause, retryable)
        self._answer(self.refused)

    def _answer(self, answer: Exited | LaunchRefused) -> None:
        self.over.set()
        self.site.on_change()
        self.site.report(self.spec.replica, answer)

    def _report_started(self) -> None:
        started = Started(self.spec.incarnation, self.pid, self.host_pid, self.port)
        self.site.report(self.spec.replica, started)

    def _on_probed(self, change: Change) -> None:
        if isinstance(change, LivenessLost | ReadinessChanged):
            change = replace(change, cause=self._redactor.redact(change.cause))
        if isinstance(change, LivenessLost):
            self.liveness_lost = change.cause or "liveness probe failed"
        self.site.report(self.spec.replica, change)
        self.site.on_change()

    def _on_start_lost(self, cause: str) -> None:
        self.site.report(self.spec.replica, StartupLost(self.spec.incarnation, self._redactor.redact(cause)))

    def _on_port_told(self, port: int) -> None:
        self._release_port()
        if port != self.port:
            self.port = port
            self._report_started()
        self.site.on_change()

    def _release_port(self) -> None:
        """The replica listens: strangers are kept out by its own socket from now on."""
        if "port" in self._held:
            self._held.remove("port")
            self.site.keeper.send(Release(self.spec.replica, self.spec.incarnation, ("port",)))

    def _signal_group(self, number: int) -> None:
        self.site.keeper.send(Signal(self.spec.replica, self.spec.incarnation, number))
