"""`python -m retinue.rehearsal`."""

import sys

from retinue.rehearsal.main import main

if __name__ == "__main__":
    sys.exit(main())
