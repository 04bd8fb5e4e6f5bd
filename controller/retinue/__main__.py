"""`python -m retinue`: the roles that this package starts itself, else the command line.

Roles import only what they need: a keeper must not pay for click.
"""

import sys


def main() -> int:
    """Dispatch on the first word; roles are not commands and do not show in --help."""
    role, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
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
        case _:
            from retinue.cli.main import main as run_cli

            return run_cli()
    return run_role(rest)


if __name__ == "__main__":
    sys.exit(main())
