"""`python -m retinue.sandbox`."""

import sys

from retinue.sandbox.main import main

if __name__ == "__main__":
    sys.exit(main())
