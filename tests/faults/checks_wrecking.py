"""Attacks that wreck their own check: hang it, crash it, exhaust what it may use, outlive it.

Each runs inside a check as text. What could exhaust this machine fires only where its limit is in force.
"""

import ctypes
import os
import resource
import signal
import sys
import time

from checks_stage import Attack
from checks_tools import SOCKET_FD, block_signals, need_limit, need_walls, sleep_for_ever, spin

from retinue.client import OutcomeKind

KILLED, TIMED_OUT = (OutcomeKind.KILLED,), (OutcomeKind.TIMED_OUT,)


def fork_bomb(gold):
    need_limit(resource.RLIMIT_NPROC, 64)
    while True:
        try:
            os.fork()
        except OSError:
            pass


def thread_bomb(gold):
    import _thread

    need_limit(resource.RLIMIT_NPROC, 64)
    while True:
        try:
            _thread.start_new_thread(spin, ())
        except RuntimeError:
            pass


def daemonise(gold):
    """Fork twice, leave the session, go on writing while the first process is gone."""
    need_walls()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            block_signals()
            while True:
                os.write(SOCKET_FD, b"\0\0\0\2{}")
        os._exit(0)
    os.wait()
    os._exit(0)


def orphan_and_score(gold):
    """As `daemonise`, but the first process brings an honest result."""
    need_walls()
    if os.fork() == 0:
        os.setsid()
        block_signals()
        while True:
            with open("/tmp/daemon", "a") as file:
                file.write("still here")
                file.truncate(0)
    return []


def allocate(gold):
    need_limit(resource.RLIMIT_AS, 16 * 2**30)
    kept = []
    while True:
        kept.append(bytearray(2**22))


def allocate_stubbornly(gold):
    need_limit(resource.RLIMIT_AS, 16 * 2**30)
    kept = []
    while True:
        try:
            kept.append(bytearray(2**22))
        except MemoryError:
            pass


def map_huge(gold):
    import mmap

    need_limit(resource.RLIMIT_AS, 16 * 2**30)
    mmap.mmap(-1, 2**40)


def print_for_ever(gold):
    while True:
        print("x" * 65536, flush=True)
        os.write(2, b"y" * 65536)


def fill_tmp(gold):
    """No file of more than the limit, and not many of them."""
    if os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize > 64 * 2**20:
        raise RuntimeError("NOT LIMITED: this attack would fill this machine's disk")
    number = 0
    while True:
        number += 1
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(2**20))


def fill_tmp_with_names(gold):
    need_walls()
    for number in range(100_000):
        os.mkdir(f"/tmp/{number}")


def exit_quietly(gold):
    os._exit(0)


def abort(gold):
    os.abort()


def crash(gold):
    ctypes.string_at(16)


def overflow_the_stack(gold):
    sys.setrecursionlimit(10**9)

    class Deep(list):
        def __repr__(self):
            return repr(self[0])

    deep = Deep([0])
    deep[0] = deep
    repr(deep)


def raise_system_exit(gold):
    raise SystemExit(0)


def raise_keyboard_interrupt(gold):
    raise KeyboardInterrupt


def raise_memory_error(gold):
    raise MemoryError


def recurse(gold):
    return recurse(gold)


def raise_an_evil_error(gold):
    class Evil(BaseException):
        def __str__(self):
            os._exit(0)

    raise Evil


def stop_a_child(gold):
    """SIGSTOP does nothing to pid 1; to its child it does, and that is waited for."""
    need_walls()
    os.kill(1, signal.SIGSTOP)
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(pid, 0)


def stop_the_group(gold):
    need_walls()
    for number in range(1, signal.NSIG):
        os.kill(0, number)
    sleep_for_ever()


def block_all_and_sleep(gold):
    block_signals()
    sleep_for_ever()


def burn_in_c(gold):
    return 9**9**9


def burn_in_the_kernel(gold):
    while True:
        with open("/dev/urandom", "rb", buffering=0) as file:
            file.read(2**24)


def burn_in_children(gold):
    """Each is young and dies at once: only the sum of all is too much."""
    need_walls()
    while True:
        pid = os.fork()
        if pid == 0:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
            os._exit(0)
        os.waitpid(pid, 0)


def close_and_spin(gold):
    os.close(SOCKET_FD)
    spin()


def half_a_result(gold):
    os.write(SOCKET_FD, b"\0\0\1\0{")
    sleep_for_ever()


def become_another_program(gold):
    os.execv("/bin/sleep", ["sleep", "600"])


ATTACKS = [
    Attack(fork_bomb, TIMED_OUT, 1.0),
    Attack(thread_bomb, (OutcomeKind.TIMED_OUT, OutcomeKind.KILLED), 1.0),
    Attack(daemonise, KILLED, says="exited with 0|protocol"),
    Attack(orphan_and_score),
    Attack(allocate, KILLED, says="MemoryError"),
    Attack(allocate_stubbornly, TIMED_OUT, 1.0),
    Attack(map_huge, KILLED, says="OSError"),
    Attack(print_for_ever, TIMED_OUT, 0.3),
    Attack(fill_tmp, KILLED, says="OSError"),
    Attack(fill_tmp_with_names, KILLED, says="OSError"),
    Attack(exit_quietly, KILLED, says="exited with 0"),
    Attack(abort, KILLED, says="crashed the checker"),
    Attack(crash, KILLED, says="segmentation"),
    Attack(overflow_the_stack, KILLED, says="segmentation"),
    Attack(raise_system_exit, KILLED, says="SystemExit"),
    Attack(raise_keyboard_interrupt, KILLED, says="KeyboardInterrupt"),
    Attack(raise_memory_error, KILLED, says="MemoryError"),
    Attack(recurse, KILLED, says="RecursionError"),
    Attack(raise_an_evil_error, KILLED, says="exited with 0"),
    Attack(stop_a_child, TIMED_OUT, 0.3),
    Attack(stop_the_group, (OutcomeKind.TIMED_OUT, OutcomeKind.KILLED), 0.3),
    Attack(block_all_and_sleep, TIMED_OUT, 0.3),
    Attack(burn_in_c, TIMED_OUT, 0.3),
    Attack(burn_in_the_kernel, TIMED_OUT, 0.3),
    Attack(close_and_spin, KILLED, says="closed its end"),
    Attack(half_a_result, TIMED_OUT, 0.3),
    Attack(become_another_program, (OutcomeKind.KILLED, OutcomeKind.TIMED_OUT), 0.3),
]
