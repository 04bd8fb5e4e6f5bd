"""`python -m retinue`: the roles that this package starts itself, else the command line.

Roles import only what they need: a keeper must not pay for click.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType


def main() -> int:
    """Dispatch on the first word; roles are not commands and do not show in --help."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        # Importing takes a moment, and nothing is there to clean up: Ctrl-C must not show where it hit.
        signal.signal(signal.SIGINT, _leave)
    run = _find_role(sys.argv[1] if len(sys.argv) > 1 else "")
    try:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(128 + signal.SIGINT)


def _find_role(role: str) -> Callable[[], int]:
    match role:
        case "stub":
            from retinue.supervise.stub import main as run_role
        case "controller":
            from retinue.supervise.main import main as run_role
        case "node":
            from retinue.node.outer import main as run_role
        case "keeper":
            from retinue.node.keeper import main as run_role
        case "agent":
            from retinue.node.agent import main as run_role
        case "gateway":
            from retinue.gateway.main import main as run_role
        case "facts":
            from retinue.doctor.main import main as run_role
        case _:
            from retinue.cli.main import main as run_cli

            return run_cli
    return lambda: run_role(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
