"""Runs a program, or with `-m` a module, over the null provider: see the package."""

from __future__ import annotations

import os
import runpy
import sys

from tests.rdma import null_provider


def main() -> None:
    name = os.environ.get("NULL_VERBS_NAME", f"null_verbs-{os.getpid()}")
    os.environ.update(null_provider.environment(name))
    null_provider.install()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
