"""`python -m transfer.demo`."""

import sys

from transfer.demo import main

if __name__ == "__main__":
    sys.exit(main())
