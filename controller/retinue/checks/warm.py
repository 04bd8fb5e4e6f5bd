"""`python -P -m retinue.checks.warm`: imports and exercises every verifier once, then forks children.

Started by the host with a control socket; ends when the host hangs up, and every check ends with it.
It is single-threaded, holds no secret (it starts again without any environment it was not meant to have)
and reads nothing of any check.
"""

import argparse
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from retinue.checks.forking import Forking
from retinue.checks.heap import collapse_heap
from retinue.checks.jail.cell import Jail, build_cell, confine_parent, open_proc
from retinue.checks.jail.choice import choose_jail
from retinue.checks.jail.namespaces import enter_namespaces
from retinue.checks.jail.root import enter_root
from retinue.checks.jail.view import HIDDEN_VARIABLES, SHOWN_VARIABLES, build_view
from retinue.checks.overdue import limit_time
from retinue.checks.plugin import Verifier
from retinue.checks.plugins import PluginError, add_search_path, describe_verifier, load_verifier, warm_verifier
from retinue.checks.records import Broken, FromWarm, Loading, WarmConfig, Warmed
from retinue.errors import PermanentError
from retinue.node import kernel
from retinue.terms.record import DecodeError, from_json, to_json

BROKEN_EXIT = 3
KEPT_VARIABLES = {
    *HIDDEN_VARIABLES,
    *SHOWN_VARIABLES,
    "PATH",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "PYTHONHOME",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RETINUE_RUN_ID",
    "RETINUE_NODE",
}
"""All that the environment block of this process may hold: every child inherits its memory."""
ENVIRONMENT = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp"}
"""All that a check sees."""
_RECURSION_MAX = 10_000
"""A plugin may raise Python's limit so far; beyond, the stack ends first and the check with it."""
_DIGITS_MAX = 200_000
"""Integers of so many digits are still converted (0.2 s in CPython 3.11); longer ones are a ValueError at once."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; the exit code is 0 when the host hung up, 3 when the host was told `Broken`."""
    if set(os.environ) - KEPT_VARIABLES:
        kept = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
        os.execve(sys.executable, sys.orig_argv, kept)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's is for the host to understand.
    options = _parse(argv)
    control = socket.socket(fileno=options.control_fd)
    os.set_inheritable(control.fileno(), False)
    try:
        _serve(control, _read_config(options.config))
    except PluginError as error:
        return _tell_broken(control, error.verifier, error.cause)
    except (PermanentError, DecodeError, OSError) as error:
        return _tell_broken(control, "", f"cannot start the warm parent: {error}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="retinue.checks.warm", description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True, help="an AF_UNIX SOCK_SEQPACKET socket")
    parser.add_argument("--config", required=True, help="a path, or the number of a descriptor, of a WarmConfig")
    return parser.parse_args(argv)


def _read_config(where: str) -> WarmConfig:
    with open(int(where) if where.isdecimal() else where, "rb") as file:
        return from_json(file.read(), WarmConfig)


def _tell_broken(control: socket.socket, verifier: str, cause: str) -> int:
    print(f"retinue checks: {verifier or 'warm parent'}: {cause}", file=sys.stderr)
    try:
        control.send(to_json(Broken(verifier, cause[:8192])))
    except OSError:  # The host is gone: nobody is left to tell.
        pass
    return BROKEN_EXIT


def _serve(control: socket.socket, config: WarmConfig) -> None:
    add_search_path(config.path)
    jail = choose_jail(config.limits, build_view(config.hide, os.environ), config.rung != "fallback")
    self_fd = enter_namespaces() if jail.is_namespaced else _stay()
    proc_fd = open_proc(jail)
    verifiers = _load(control, config, proc_fd)
    # Only now is it known what Python needs; what is exercised below sees what checks will see.
    view = build_view(config.hide, os.environ)
    if jail.is_namespaced:
        enter_root(view)
    confine_parent(jail)
    for name, verifier in verifiers.items():
        control.send(to_json(Loading(name, "warm")))
        with limit_time(config.import_limit_s):
            warm_verifier(name, config.verifiers[name], verifier)
        _check_threads(name, config.verifiers[name], proc_fd)
    cell = build_cell(jail, view, config.limits, self_fd, proc_fd)
    _settle()
    collapse_heap(proc_fd)
    Forking(control, cell, verifiers).run(_build_warmed(jail, verifiers))


def _stay() -> int:
    """Without namespaces this process is the only one; it goes with the host."""
    kernel.set_death_signal(signal.SIGKILL)
    return -1


def _load(control: socket.socket, config: WarmConfig, proc_fd: int) -> dict[str, Verifier]:
    verifiers = {}
    for name, target in config.verifiers.items():
        # Said before, because it may be the last that is heard: an import can end this process.
        control.send(to_json(Loading(name, "import")))
        with limit_time(config.import_limit_s):
            verifiers[name] = load_verifier(name, target)
        _check_threads(name, target, proc_fd)
    return verifiers


def _check_threads(name: str, target: str, proc_fd: int) -> None:
    """A fork copies locks, not the threads that would release them.

    Errors: PluginError when there is more than one thread.
    """
    fd = os.open("self/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        count = len(os.listdir(fd))
    finally:
        os.close(fd)
    if count > 1:
        raise PluginError(
            name, target, f"it left {count - 1} thread(s) running, and a process with threads cannot fork"
        )


def _settle() -> None:
    """Put the interpreter into the state that every check starts from."""
    faulthandler.disable()
    sys.setrecursionlimit(min(sys.getrecursionlimit(), _RECURSION_MAX))
    sys.set_int_max_str_digits(_DIGITS_MAX)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    gc.collect()
    # What is here now is never looked at again: a collection in a child would copy every page it visits.
    gc.freeze()


def _build_warmed(jail: Jail, verifiers: Mapping[str, Verifier]) -> FromWarm:
    return Warmed({name: describe_verifier(verifier) for name, verifier in verifiers.items()}, jail.rung)


if __name__ == "__main__":
    sys.exit(main())
