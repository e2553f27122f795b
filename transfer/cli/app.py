"""The commands of `transfer` and their options. Each imports its implementation only when it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transfer.cli import audit, broker, dlq, options, runs, topics
from transfer.cli.command_help import App, HelpGroup
from transfer.cli.exits import EXIT_INTERRUPTED, silence_output
from transfer.cli.options import Kept, Shown, Sink, Source, Where, WhereWithTimeout

if TYPE_CHECKING:
    from transfer.cli.progress import Progress


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("transfer: stopped by Ctrl-C", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


class _Commands(HelpGroup):
    """Reports a Ctrl-C while a command is loading: Typer would end without a message."""

    def make_context(self, *given: Any, **more: Any) -> Any:
        with _interruptible():
            return super().make_context(*given, **more)

    def invoke(self, context: Any) -> Any:
        with _interruptible():
            return super().invoke(context)


app = App(
    "Moves tensors and bytes between processes with ZeroMQ's patterns.",
    cls=_Commands,
    name="transfer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(runs.app, name="runs")
app.add_typer(broker.app, name="broker")
app.add_typer(dlq.app, name="dlq")
app.add_typer(audit.app, name="audit")
app.add_typer(topics.groups_app, name="groups")
app.add_typer(topics.app, name="topics")


def _report_bound(endpoint: str) -> None:
    print(f"bound to {endpoint}", file=sys.stderr, flush=True)


@contextmanager
def _until_interrupted(progress: Progress) -> Iterator[None]:
    """Ends a long command with its closing line, also if it was interrupted."""
    try:
        with progress:
            yield
    except KeyboardInterrupt:
        progress.close()
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of the output has gone (`transfer pull | head`), which is no error.
        silence_output()
        raise typer.Exit(0) from None
    except BaseException:
        if progress.messages:
            progress.close()
        raise
    progress.close()


def _send(kind: str, where: Where, source: Source, shown: Shown, *, count: int | None, **more: Any) -> None:
    from transfer.cli.messages import send_all
    from transfer.cli.progress import Progress

    inputs = source.inputs()
    progress = Progress(
        "sent",
        total_bytes=inputs.total_bytes,
        total_messages=count,
        quiet=shown.quiet,
        as_json=shown.json,
    )
    with _until_interrupted(progress):
        send_all(kind, where, inputs, progress, count=count, report=_report_bound, **more)


def _receive(
    kind: str, where: Where, sink: Sink, shown: Shown, *, count: int | None, topics: Sequence[str] = ()
) -> None:
    from transfer.cli.messages import receive_all

    writer = sink.writer(shown)
    progress = _progress_of("received", shown, count, lines=sink.out is None)
    with _until_interrupted(progress):
        receive_all(kind, where, writer, progress, count=count, topics=topics, report=_report_bound)


def _progress_of(verb: str, shown: Shown, count: int | None, lines: bool) -> Progress:
    """Makes the progress of a command whose JSON is the messages. lines: it prints messages as text."""
    from transfer.cli.progress import Progress

    return Progress(verb, total_messages=count, quiet=shown.quiet or shown.json, lines=lines)


@app.command()
@options.grouped
def push(
    where: Where,
    source: Source,
    *,
    count: options.Count = None,
    interval: options.Interval = 0.0,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm", help="End only after the receivers have taken everything, whatever they do with it."
        ),
    ] = False,
    shown: Shown,
) -> None:
    """Send messages to pullers, each message to one of them."""
    _send("PUSH", where, source, shown, count=count, interval=interval, confirm=confirm)


@app.command()
@options.grouped
def pull(where: Where, sink: Sink, *, count: options.Count = None, shown: Shown) -> None:
    """Receive messages of pushers, and print them or write them to files."""
    _receive("PULL", where, sink, shown, count=count)


@app.command()
@options.grouped
def pub(
    where: Where,
    source: Source,
    *,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Topic of the messages; subscribers filter by its prefix."
        ),
    ] = None,
    wait: Annotated[
        int,
        typer.Option("--wait", min=0, metavar="N", help="Start when so many subscribers are connected."),
    ] = 1,
    count: options.Count = None,
    interval: options.Interval = 0.0,
    shown: Shown,
) -> None:
    """Send messages to all subscribers. Messages for slow subscribers are dropped, and counted."""
    _send("PUB", where, source, shown, count=count, interval=interval, topic=topic, wait=wait)


@app.command()
@options.grouped
def sub(
    where: Where,
    sink: Sink,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only topics with this prefix; may be repeated. [default: all]"
        ),
    ] = None,
    count: options.Count = None,
    shown: Shown,
) -> None:
    """Receive messages of publishers."""
    _receive("SUB", where, sink, shown, count=count, topics=topic or [""])


@app.command()
@options.grouped
def req(
    where: WhereWithTimeout, source: Source, sink: Sink, *, count: options.Count = None, shown: Shown
) -> None:
    """Send requests and print the replies."""
    from transfer.cli.messages import ask_all

    inputs, writer = source.inputs(), sink.writer(shown)
    progress = _progress_of("received", shown, count, lines=sink.out is None)
    with _until_interrupted(progress):
        ask_all(where, inputs, writer, progress, count=count)


@app.command()
@options.grouped
def rep(
    where: Where,
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Answer with these in turn; without any: echo the request."),
    ] = None,
    data: options.Data = None,
    show: Annotated[bool, typer.Option("--show", help="Print the requests.")] = False,
    count: options.Count = None,
    shown: Shown,
) -> None:
    """Answer requests with texts and files, or echo them."""
    from pathlib import Path

    from transfer.cli.inputs import Inputs
    from transfer.cli.messages import answer_all
    from transfer.cli.outputs import Writer

    paths = [Path(name) for name in files or ()]
    replies = list(Inputs(paths, data or ())) if paths or data else []
    writer = Writer(as_json=shown.json) if show or shown.json else None
    progress = _progress_of("answered", shown, count, lines=show)
    with _until_interrupted(progress):
        answer_all(where, replies, writer, progress, count=count, report=_report_bound)


@app.command()
@options.grouped
def serve(kept: Kept, *, json: options.Json = False) -> None:
    """Run a spool, which keeps rows between Spark and training loops. SIGTERM or Ctrl-C ends it."""
    from transfer.cli.run_spool import serve as run

    raise typer.Exit(run(kept, as_json=json))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def bench(context: typer.Context) -> None:
    """Measure a broker; all else needs the repository.

    `bench broker` measures a broker. In the repository, others compare transfer with pyzmq and more.
    """
    if context.args[:1] == ["broker"]:
        from transfer.cli.bench import app as bench_broker

        bench_broker(context.args[1:], prog_name=f"{context.command_path} broker")
    from transfer.cli.tools import run_bench

    raise typer.Exit(run_bench(context.args))


@app.command(
    name="as-zmq",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
)
def as_zmq(
    context: typer.Context,
    program: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM [ARGS]...",
            help="A file of Python (.py), -m and a module, or a command; its arguments follow.",
        ),
    ],
    *,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="NAME",
            help="The transport to use, as MC_RPC_PROTOCOL: tcp, rdma, ucx, auto.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="POLICY", help="As MC_RPC_POLICY: auto, prefer or require."),
    ] = None,
) -> None:
    """Run a program unchanged with `zmq` replaced by transfer.zmq, in it and in its Python children.

    All its peers have to run so, too. Interpreters that ignore PYTHONPATH (python -I, -E) are not reached.
    """
    from transfer.cli.as_zmq import run

    run([program, *context.args], transport, policy)


@app.command()
@options.grouped
def doctor(between: options.Between, json: options.Json = False) -> None:
    """Check what works on this machine, with hints for what does not; or measure between two machines.

    Exit code 1: something does not work, or is slower than --min-gbps.
    """
    from transfer.cli import tools
    from transfer.transports.errors import UsageError

    if between.serve is not None:
        raise typer.Exit(tools.serve_doctor(between.serve, as_json=json))
    if between.peer is None and (between.min_gbps or between.seconds != options.SECONDS):
        raise UsageError(
            "--min-gbps and --seconds need a peer", hint="--peer HOST:PORT, where a doctor serves"
        )
    if between.peer is not None:
        raise typer.Exit(tools.measure_peer(between.peer, between.seconds, between.min_gbps, as_json=json))
    raise typer.Exit(tools.run_doctor(as_json=json))


@app.command()
def health(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]", help="The broker's HTTP address. [default: that in this machine's configuration]"
        ),
    ] = None,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Check whether it needs a restart, not whether it is ready.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            "-t",
            parser=options.time_parser(0.1),
            metavar="TIME",
            help="Give up after this long.",
        ),
    ] = 3.0,
) -> None:
    """Check whether a broker is ready. Exit code 0: it is; 1: it is not, or there is no answer."""
    from transfer.cli.health import check

    raise typer.Exit(check(url, live=live, timeout=timeout))


@app.command()
def certificates(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the files; it is created if it is missing.")
    ],
    *,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of a certificate; may be repeated. [default: peer]"
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Host name or IP address of the certificates; may be repeated. "
            "[default: localhost and 127.0.0.1]",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, metavar="DAYS", help="Validity of the certificates.")
    ] = 365,
) -> None:
    """Make an authority, certificates and a token for a small set-up; print the variables for them.

    It keeps an authority and a token that FOLDER has already. The authority's key can sign any certificate:
    keep it away from the programs that use the certificates.
    """
    from transfer.cli.certificates import make

    hosts = host or ["localhost", "127.0.0.1"]
    print("\n".join(make(folder, name or ["peer"], hosts, days)))


def _print_version(enabled: bool) -> None:
    if enabled:
        version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            show_default=False,
            help="Log to standard error; -vv also for debugging.",
        ),
    ] = 0,
) -> None:
    """Options of all commands; they stand before the command's name."""
    if verbose:
        from transfer.log_output import show

        show("info" if verbose == 1 else "debug")


@app.command()
def version(json: options.Json = False) -> None:
    """Print the version, the core in use, and Python's version."""
    from transfer.cli.tools import show_version

    show_version(as_json=json)
