"""`python -m retinue.retrieval`."""

import os
import sys

from retinue.retrieval.main import main

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A search that hangs in a library, on a dead file system say, must not hold the process.
    os._exit(code)
