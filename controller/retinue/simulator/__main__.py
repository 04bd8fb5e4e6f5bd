"""`python -m retinue.simulator`."""

import sys

from retinue.simulator.main import main

if __name__ == "__main__":
    sys.exit(main())
