"""`python -m hybridkern` is the command `hybridkern`."""

import sys

from hybridkern.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
