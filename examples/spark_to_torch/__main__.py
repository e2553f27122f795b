"""`python -m examples.spark_to_torch`."""

import sys

from examples.spark_to_torch import main

if __name__ == "__main__":
    sys.exit(main())
