"""`python -m retinue.judge`: loads a model and serves it until SIGTERM or SIGINT, then exits 0.

While it loads a signal ends it at once. Exits 2 or 3 where trying again cannot help: the model is not
there or is none, the library is missing.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence

from retinue.errors import PermanentError, RetinueError
from retinue.judge.engine import load_library, start_server
from retinue.judge.settings import build_parser, build_settings

BROKEN_EXIT = 3
"""Trying again will not help: `restart.no_restart` of the template has it."""
END_S = 5.0
"""For requests under way at the end; one that computes on is cut off."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the judge until it is told to stop; returns the exit code."""
    words = build_parser().parse_args(argv)
    try:
        settings = build_settings(words, os.environ)
        library = load_library()
        print(f"retinue judge: loading {settings.model}, {settings.threads} threads", file=sys.stderr, flush=True)
        server = start_server(library, settings)
    except PermanentError as error:
        print(f"retinue judge: {error}", file=sys.stderr)
        return BROKEN_EXIT
    except RetinueError as error:
        print(f"retinue judge: {error}", file=sys.stderr)
        return error.exit_code
    # Before it is said that it serves: who reads that may stop it at once.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    print(f"retinue judge: listening on {server.listening_address}", file=sys.stderr, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    late = threading.Timer(END_S, os._exit, (0,))
    late.daemon = True
    late.start()
    del server
    late.cancel()
    return 0
