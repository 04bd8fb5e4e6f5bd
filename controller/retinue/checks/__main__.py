"""`python -m retinue.checks`."""

import sys

from retinue.checks.main import main

if __name__ == "__main__":
    sys.exit(main())
