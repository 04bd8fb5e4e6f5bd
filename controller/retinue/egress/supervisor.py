"""The egress supervisor of a node: one process that answers the calls of every guarded service.

Forked by the keeper, which holds every listener and the slate, so that its death costs a
moment and no answer: the next one begins with the call that this one had taken. It can read
every service's memory, so nobody may read its own. Source: facts are in docs/egress.md.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback

from retinue.egress import notify
from retinue.egress import numbers as n
from retinue.egress.addresses import read_own_addresses
from retinue.egress.answering import Answering, Guarded
from retinue.egress.ledger import Ledger
from retinue.egress.notify import Slate
from retinue.egress.records import Alive, FromSupervisor, Ready, Seen, Tell, ToSupervisor, Watch
from retinue.egress.rules import Reach, Rules
from retinue.node.descriptors import close_fds, receive_packet, send_packet
from retinue.node.kernel import close_all_fds_but
from retinue.terms.egress import Denied

BEAT_S = 0.5
TELL_S = 0.2
"""Repeated denials are told together after this long; a new destination is told at once."""
LINES_MAX = 200
"""In one packet; a keeper that does not read costs no line, only time."""
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""scancel and the end of a job's time signal every process; this one ends with its keeper, after the services."""
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_BUG = 70


def run_supervisor(machine: n.Machine, keeper_fd: int, slate_fd: int) -> None:
    """Be the supervisor in a fork of the keeper until the keeper is gone; never returns, whatever happens."""
    code = _BUG
    try:
        close_all_fds_but({keeper_fd, slate_fd})
        # Objects of the keeper that own what is closed now must never be collected: they would close what is ours.
        gc.freeze()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, b"retinue-egress", 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        with socket.socket(fileno=keeper_fd) as keeper:
            keeper.setblocking(False)
            _Supervisor(machine, keeper, Slate(slate_fd)).run()
        code = 0
    finally:
        error = sys.exc_info()[1]
        if error is not None:
            traceback.print_exception(error)
            sys.stderr.flush()
        os._exit(code)


class _Supervisor:
    """The loop and what it watches."""

    def __init__(self, machine: n.Machine, keeper: socket.socket, slate: Slate) -> None:
        self._keeper = keeper
        self._slate = slate
        self._reach = Reach()
        self._reach.take_own(read_own_addresses())
        self._ledger = Ledger()
        self._answering = Answering(machine, slate, self._reach, self._note)
        self._guarded: dict[int, Guarded] = {}
        """By listener."""
        self._poller = select.epoll()
        self._poller.register(keeper, select.EPOLLIN)
        self._beat_due_s = self._tell_due_s = 0.0
        self._is_ready = False
        """Until then no new call is taken: the slate may hold one of a listener that is still to come."""
        self._is_over = False

    def run(self) -> None:
        while not self._is_over:
            for fd, events in self._poller.poll(TELL_S):
                if fd == self._keeper.fileno():
                    self._hear()
                elif fd in self._guarded:
                    self._serve(self._guarded[fd], events)
            self._tell(time.monotonic())

    def _serve(self, guarded: Guarded, events: int) -> None:
        if events & select.EPOLLIN:
            notice = notify.receive(guarded.listener, guarded.key, self._slate)
            if notice is not None:
                self._answering.answer(guarded, notice, self._slate.read_mark())
        elif events & (select.EPOLLHUP | select.EPOLLERR):
            # Nobody is left who could call.
            self._poller.unregister(guarded.listener)
            del self._guarded[guarded.listener]
            os.close(guarded.listener)

    # --- the keeper ---------------------------------------------------------------------------

    def _hear(self) -> None:
        while not self._is_over:
            try:
                packet = receive_packet(self._keeper, ToSupervisor)
            except BlockingIOError:
                return
            if packet is None:
                self._is_over = True
                return
            self._take(*packet)

    def _take(self, order: ToSupervisor, fds: list[int]) -> None:
        match order:
            case Tell(addresses=addresses):
                self._reach.tell(addresses)
            case Watch() if len(fds) == 1:
                self._watch(order, fds.pop())
            case Ready():
                self._is_ready = True
                self._slate.wipe()
                for listener in self._guarded:
                    self._poller.register(listener, select.EPOLLIN)
        close_fds(fds)

    def _watch(self, order: Watch, listener: int) -> None:
        guarded = Guarded(order.key, order.replica, listener, Rules(order.rule, self._reach))
        self._guarded[listener] = guarded
        notify.speed_up(listener)
        if self._is_ready:
            self._poller.register(listener, select.EPOLLIN)
        else:
            self._recover(guarded)

    def _recover(self, guarded: Guarded) -> None:
        """Answer the call that a supervisor before this one had taken from this listener."""
        notice, mark = self._slate.read_notice(), self._slate.read_mark()
        if notice is None or mark.key != guarded.key:
            return
        mark = mark._replace(tries=mark.tries + 1)
        self._slate.write_mark(mark)
        self._answering.answer(guarded, notice, mark)

    def _note(self, line: Denied) -> None:
        if self._ledger.add(line):
            self._tell_due_s = 0.0

    def _tell(self, now_s: float) -> None:
        if now_s >= self._beat_due_s and self._send(Alive()):
            self._beat_due_s = now_s + BEAT_S
        if self._ledger.has_changed and now_s >= self._tell_due_s:
            self._tell_due_s = now_s + TELL_S
            lines = self._ledger.list_all()
            parts = [tuple(lines[at : at + LINES_MAX]) for at in range(0, len(lines), LINES_MAX)]
            if self._send(Seen(parts[0])):
                self._ledger.clear()
                for part in parts[1:]:
                    self._put_off(part)

    def _put_off(self, lines: tuple[Denied, ...]) -> None:
        if not self._send(Seen(lines)):
            for line in lines:
                self._ledger.add(line)

    def _send(self, packet: FromSupervisor) -> bool:
        try:
            send_packet(self._keeper, packet)
        except BlockingIOError:
            return False
        except OSError:
            self._is_over = True
            return False
        return True
