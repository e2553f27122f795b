"""`python -m transfer` is the command `transfer`."""

from transfer.cli import main

if __name__ == "__main__":
    main()
