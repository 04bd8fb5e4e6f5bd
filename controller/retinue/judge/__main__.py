"""`python -m retinue.judge`."""

import sys

from retinue.judge.main import main

if __name__ == "__main__":
    sys.exit(main())
