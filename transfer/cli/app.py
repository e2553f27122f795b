"""The commands of `transfer` and their options. What they do stands in modules loaded when needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from transfer.cli import EXIT_INTERRUPTED, options

if TYPE_CHECKING:
    from transfer.cli.progress import Progress

app = typer.Typer(
    name="transfer",
    help="Moves tensors and bytes between processes with ZeroMQ's patterns.",
    epilog="Exit codes: 0 done, 1 an error, 2 wrong usage, 3 a time-out passed, 130 Ctrl-C.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help needs no rich, and is there in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _report_bound(endpoint: str) -> None:
    print(f"bound to {endpoint}", file=sys.stderr, flush=True)


def _silence_output() -> None:
    """Lets Python flush standard output at exit without a complaint about the pipe."""
    # Not closed: it is standard output until the process ends, which is now.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _until_interrupted(progress: Progress) -> Iterator[None]:
    """The end of every long command: its closing line comes, whether it was stopped or not."""
    try:
        with progress:
            yield
    except KeyboardInterrupt:
        progress.close()
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our output has left (`transfer pull | head`), which is no error.
        _silence_output()
        raise typer.Exit(0) from None
    except BaseException:
        if progress.messages:
            progress.close()
        raise
    progress.close()


@app.command()
def push(
    files: options.Files = None,
    connect: options.Connect = None,
    bind: options.Bind = None,
    data: options.Data = None,
    lines: options.Lines = False,
    whole: options.Whole = False,
    chunk: options.Chunk = None,
    repeat: options.Repeat = 1,
    count: options.Count = None,
    interval: options.Interval = 0.0,
    timeout: options.Timeout = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="End only when the receivers took everything.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Send messages to the pullers, each to one of them."""
    from transfer.cli.inputs import Inputs
    from transfer.cli.messages import Ends, send_all
    from transfer.cli.progress import Progress

    inputs = Inputs(files or (), data or (), lines, whole, chunk, repeat)
    ends = Ends(bind or [], connect or [], timeout)
    progress = Progress(
        "sent", total_bytes=inputs.total_bytes, total_messages=count, quiet=quiet, as_json=json
    )
    with _until_interrupted(progress):
        send_all(
            "PUSH",
            ends,
            inputs,
            progress,
            interval=interval,
            confirm=confirm,
            count=count,
            report=_report_bound,
        )


@app.command()
def pull(
    connect: options.Connect = None,
    bind: options.Bind = None,
    out: options.Out = None,
    raw: options.Raw = False,
    count: options.Count = None,
    timeout: options.Timeout = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Receive what pushers send, and print it or write it to files."""
    from transfer.cli.messages import Ends, receive_all
    from transfer.cli.outputs import Writer
    from transfer.cli.progress import Progress

    ends = Ends(bind or [], connect or [], timeout)
    writer = Writer(folder=out, as_json=json, raw=raw)
    progress = Progress("received", total_messages=count, quiet=quiet or json, lines=out is None)
    with _until_interrupted(progress):
        receive_all("PULL", ends, writer, progress, count=count, report=_report_bound)


@app.command()
def pub(
    files: options.Files = None,
    connect: options.Connect = None,
    bind: options.Bind = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Subscribers choose by its beginning.")] = None,
    wait: Annotated[int, typer.Option("--wait", min=0, help="Begin when so many subscribers are there.")] = 1,
    data: options.Data = None,
    lines: options.Lines = False,
    whole: options.Whole = False,
    chunk: options.Chunk = None,
    repeat: options.Repeat = 1,
    count: options.Count = None,
    interval: options.Interval = 0.0,
    timeout: options.Timeout = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Send messages to all subscribers. A slow one loses messages; that is counted, not hidden."""
    from transfer.cli.inputs import Inputs
    from transfer.cli.messages import Ends, send_all
    from transfer.cli.progress import Progress

    inputs = Inputs(files or (), data or (), lines, whole, chunk, repeat)
    ends = Ends(bind or [], connect or [], timeout)
    progress = Progress(
        "sent", total_bytes=inputs.total_bytes, total_messages=count, quiet=quiet, as_json=json
    )
    with _until_interrupted(progress):
        send_all(
            "PUB",
            ends,
            inputs,
            progress,
            topic=topic,
            wait=wait,
            interval=interval,
            count=count,
            report=_report_bound,
        )


@app.command()
def sub(
    connect: options.Connect = None,
    bind: options.Bind = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only these beginnings; repeat it.")
    ] = None,
    out: options.Out = None,
    raw: options.Raw = False,
    count: options.Count = None,
    timeout: options.Timeout = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Receive what publishers send."""
    from transfer.cli.messages import Ends, receive_all
    from transfer.cli.outputs import Writer
    from transfer.cli.progress import Progress

    ends = Ends(bind or [], connect or [], timeout)
    writer = Writer(folder=out, as_json=json, raw=raw)
    progress = Progress("received", total_messages=count, quiet=quiet or json, lines=out is None)
    with _until_interrupted(progress):
        receive_all("SUB", ends, writer, progress, count=count, topics=topic or [""], report=_report_bound)


@app.command()
def req(
    files: options.Files = None,
    connect: options.Connect = None,
    bind: options.Bind = None,
    data: options.Data = None,
    lines: options.Lines = False,
    whole: options.Whole = False,
    chunk: options.Chunk = None,
    repeat: options.Repeat = 1,
    count: options.Count = None,
    out: options.Out = None,
    raw: options.Raw = False,
    timeout: options.Timeout = 30.0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Send requests and print the replies."""
    from transfer.cli.inputs import Inputs
    from transfer.cli.messages import Ends, ask_all
    from transfer.cli.outputs import Writer
    from transfer.cli.progress import Progress

    inputs = Inputs(files or (), data or (), lines, whole, chunk, repeat)
    ends = Ends(bind or [], connect or [], timeout)
    writer = Writer(folder=out, as_json=json, raw=raw)
    progress = Progress("received", total_messages=count, quiet=quiet or json, lines=out is None)
    with _until_interrupted(progress):
        ask_all(ends, inputs, writer, progress, count=count)


@app.command()
def rep(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Answer with these, round and round; without any: echo."),
    ] = None,
    connect: options.Connect = None,
    bind: options.Bind = None,
    data: options.Data = None,
    show: Annotated[bool, typer.Option("--show", help="Print the requests.")] = False,
    count: options.Count = None,
    timeout: options.Timeout = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Answer requests, with what was asked or with texts and files."""
    from pathlib import Path

    from transfer.cli.inputs import Inputs
    from transfer.cli.messages import Ends, answer_all
    from transfer.cli.outputs import Writer
    from transfer.cli.progress import Progress

    ends = Ends(bind or [], connect or [], timeout)
    paths = [Path(name) for name in files or ()]
    replies = list(Inputs(paths, data or ())) if paths or data else []
    writer = Writer(as_json=json) if show or json else None
    progress = Progress("answered", total_messages=count, quiet=quiet or json, lines=show)
    with _until_interrupted(progress):
        answer_all(ends, replies, writer, progress, count=count, report=_report_bound)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def demo(context: typer.Context) -> None:
    """Push a real data set from Spark into a PyTorch training loop."""
    from transfer.cli.tools import run_demo

    raise typer.Exit(run_demo(context.args))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Measure this machine against pyzmq and others (needs the repository)."""
    from transfer.cli.tools import run_bench

    raise typer.Exit(run_bench(context.args))


@app.command()
def doctor(json: options.Json = False) -> None:
    """Tell what works here, and what to do about what does not."""
    from transfer.cli.tools import run_doctor

    raise typer.Exit(run_doctor(as_json=json))


@app.command()
def version(json: options.Json = False) -> None:
    """Tell the version, the core in use, and Python's version."""
    from transfer.cli.tools import show_version

    show_version(as_json=json)
