"""The command line. This module is light: typer and rich are loaded when `main` runs."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

#: what a shell script can tell apart
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process with its exit code.

    0 done, 1 an error, 2 wrong usage, 3 a time-out passed, 130 Ctrl-C. Errors go to standard error
    as one line and a hint; a traceback means a bug of ours.
    """
    if os.getpid() == 1:
        # A container's first process. The kernel drops signals that it has no handler for, so that SIGTERM
        # would do nothing. It is Ctrl-C here, unless the command has an end of its own.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # `transfer ... >&-`
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a ✓ where only ASCII is
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """What `main` does, but the exit code is returned. Raises only what is a bug."""
    from transfer.transports import errors

    code = 0
    try:
        from transfer.cli.app import app  # within: Ctrl-C may come while it is loaded

        try:
            app(list(arguments), prog_name="transfer")
        except SystemExit as end:  # how the parser says that it is done
            if isinstance(end.__context__, BrokenPipeError):  # with 1, as rich does it, too
                raise BrokenPipeError from None
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if sys.stdout is not None:  # closed: `transfer version >&-`
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left (`transfer doctor | head -1`): no error
        silence_output()
    except KeyboardInterrupt:
        return _complain("stopped by Ctrl-C", EXIT_INTERRUPTED)
    except errors.Again as error:
        return _complain(str(error) or "timed out", EXIT_TIMEOUT)
    except (errors.SecurityError, errors.MissingLibrary) as error:
        return _complain(str(error), EXIT_ERROR)
    except errors.UsageError as error:
        return _complain(str(error), EXIT_USAGE)
    except errors.TransferError as error:
        return _complain(str(error), EXIT_ERROR)
    except OSError as error:
        where = error.filename or ("the output" if error.errno == errno.ENOSPC else "")
        reason = error.strerror or str(error)
        return _complain(f"{where}: {reason}" if where else reason, EXIT_ERROR)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "transfer":
            raise
        hint = "`transfer doctor` tells what to install for what"
        if error.name.partition(".")[0] in ("typer", "rich", "click"):
            hint = "pip install 'tensor-transfer[cli]'"
        return _complain(f"{error.name} is missing\n  hint: {hint}", EXIT_ERROR)
    return code


def silence_output() -> None:
    """Lets Python flush standard output at exit without a complaint about the pipe."""
    # Not closed: it is standard output until the process ends, which is now.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _complain(text: str, code: int) -> int:
    with suppress(BrokenPipeError):
        print(f"transfer: {text}", file=sys.stderr)
    return code
