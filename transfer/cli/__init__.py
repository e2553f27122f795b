"""The command line. Only `main` imports typer and rich.

admin         a client of a broker's admin API over HTTP
app           the commands of `transfer` and their options
as_zmq        `transfer as-zmq`: runs a program in whose Python processes `zmq` is `transfer.zmq`
audit         `transfer audit …`: its commands and their options
bench         `transfer bench broker`: its commands and their options
broker        `transfer broker` and its subcommands: their options
certificates  `transfer certificates`: an authority, certificates and a token for a small set-up
command_help  the classes of the commands: usage lines, arguments and the end of their help
dlq           `transfer dlq …`: its commands and their options
exits         how commands end: exit codes, and an output without a reader
health        `transfer health`: checks a broker's health, for example for a container
heap_trimmer  returns freed memory to the system
inputs        reads messages to send: from files, standard input or texts
messages      the commands that send and receive: push, pull, pub, sub, req, rep
options       options that several commands share, and their parsers
outputs       writes received messages: as lines for people, JSON, raw bytes or files
progress      a progress bar for long work, only on a terminal, and its closing line
run_broker    `transfer broker`: a broker in this process, until a signal or its log's failure ends it
run_spool     `transfer serve`: a spool in this process, until a signal or its failure ends it
runs          `transfer runs …`: its commands and their options
service       the common parts of commands that serve until a signal ends them
tables        prints tables for people, and JSON for programs, to standard output
tools         the commands without sockets: bench, doctor, version
topics        `transfer topics …`: its commands and their options
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from transfer.cli.exits import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_TIMEOUT, EXIT_USAGE, silence_output


def main(arguments: Sequence[str] | None = None, name: str = "transfer") -> None:
    """Runs the command, and ends the process with its exit code. name: of the command, in its help.

    0: success, 1: an error, 2: wrong usage, 3: a time-out, 130: Ctrl-C. It prints errors to standard error,
    as one line and a hint. A traceback is a bug.
    """
    if os.getpid() == 1:
        # For a container's first process the kernel drops signals without a handler, such as SIGTERM. So it
        # acts as Ctrl-C, unless the command handles it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's shell has what it starts with `&` ignore SIGINT. Whoever sends one by `kill` means it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # `transfer ... >&-`
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a ✓ where only ASCII is
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, name))


def run(arguments: Sequence[str], name: str = "transfer") -> int:
    """Runs the command, and returns its exit code. Any exception that it raises is a bug.

    name: of the command, in its help.
    """
    from transfer.transports import errors

    code = 0
    try:
        from transfer.cli.app import app  # inside of `try`: Ctrl-C may interrupt the import

        try:
            app(list(arguments), prog_name=name)
        except SystemExit as end:  # the parser always ends with it
            if isinstance(end.__context__, BrokenPipeError):  # typer, as rich, turns it into exit code 1
                raise BrokenPipeError from None
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if sys.stdout is not None:  # closed: `transfer version >&-`
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has gone (`transfer doctor | head -1`): no error
        silence_output()
    except KeyboardInterrupt:
        return _print_error("stopped by Ctrl-C", EXIT_INTERRUPTED)
    except errors.Again as error:
        return _print_error(str(error) or "timed out", EXIT_TIMEOUT)
    except (errors.SecurityError, errors.MissingLibrary) as error:
        return _print_error(str(error), EXIT_ERROR)
    except errors.UsageError as error:
        return _print_error(str(error), EXIT_USAGE)
    except errors.TransferError as error:
        return _print_error(str(error), EXIT_ERROR)
    except OSError as error:
        where = error.filename or ("the output" if error.errno == errno.ENOSPC else "")
        reason = error.strerror or str(error)
        return _print_error(f"{where}: {reason}" if where else reason, EXIT_ERROR)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "transfer":
            raise
        hint = "`transfer doctor` lists what to install for each feature"
        if error.name.partition(".")[0] in ("typer", "rich", "click"):
            hint = errors.install_hint("cli")
        return _print_error(f"{error.name} is missing\n  hint: {hint}", EXIT_ERROR)
    return code


def _print_error(text: str, code: int) -> int:
    with suppress(BrokenPipeError):
        print(f"transfer: {text}", file=sys.stderr)
    return code
