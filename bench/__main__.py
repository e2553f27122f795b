"""`python -m bench`. Spawned processes import this module again, so it does nothing by itself."""

if __name__ == "__main__":
    import sys

    from bench.cli import main

    sys.exit(main())
