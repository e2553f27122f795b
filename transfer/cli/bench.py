"""`transfer bench broker`: its commands and their options.

`run_bench.py` implements the measurement and its matrix, `rqueue_bench.py` rqueue's sink and pusher.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transfer.cli import options
from transfer.cli.options import grouped, parse_age, parse_size

if TYPE_CHECKING:
    from transfer.broker.bench.plan import Plan
    from transfer.cli.run_bench import Measured

app = typer.Typer(
    help="Load a broker from processes of this machine, and measure it.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Mode = Annotated[
    str,
    typer.Option(
        metavar="direct-ack|fanout|mixed",
        help="Kept, acknowledged messages; live messages to all subscribers by TTP; or both, on many topics.",
    ),
]
PayloadClass = Annotated[
    str, typer.Option(metavar="small|medium|large", help="1 KiB, 64 KiB or 1 MiB of payload.")
]


@dataclass(frozen=True)
class Load:
    """Options of all measurements."""

    duration: Annotated[
        float | None,
        typer.Option(parser=parse_age, metavar="TIME", help="Duration of each measurement. [10s]"),
    ] = None
    connections: Annotated[int, typer.Option(help="Publishers, each a process; as many consumers.")] = 1
    fanout_subs: Annotated[int, typer.Option(help="Subscribers of fanout, each a process.")] = 8
    mixed_topics: Annotated[int, typer.Option(help="Topics of mixed.")] = 8
    in_flight: Annotated[int, typer.Option(help="Unreceived messages of each publisher at most.")] = 64

    def plan(self, mode: str = "direct-ack", payload_class: str = "small", *, compress: bool = False) -> Plan:
        """Makes the plan of a measurement. Raises OptionError."""
        from transfer.broker.bench.plan import DURATION, Mode, Plan
        from transfer.transports.errors import OptionError

        if mode not in list(Mode):
            raise OptionError(f"there is no mode {mode!r}", hint=f"one of {', '.join(Mode)}")
        return Plan(
            Mode(mode),
            payload_class,
            compress,
            DURATION if self.duration is None else self.duration,
            self.connections,
            self.fanout_subs,
            self.mixed_topics,
            self.in_flight,
        )


@dataclass(frozen=True)
class BenchBroker:
    """Options that choose the measured broker."""

    requests: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Endpoint of a running broker where DEALERs connect."),
    ] = None
    ttp: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="TTP address of a running broker.")] = (
        None
    )
    pid: Annotated[
        int | None,
        typer.Option(help="Process of a running broker on this machine, to measure its CPU and memory."),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="HTTP address of a running broker, to read its metrics."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make the started broker's folder there; it is removed at the end."),
    ] = None

    def measured(self) -> Measured:
        """Returns the measured broker. Raises OptionError."""
        from transfer.cli.run_bench import Measured

        return Measured(self.requests, self.ttp, self.pid, self.url, self.data)


Truth = Annotated[Literal["true", "false"], typer.Option("--compress", help="Compress payloads with LZ4.")]


@app.callback(invoke_without_command=True)
@grouped
def broker(
    context: typer.Context,
    *,
    mode: Mode = "direct-ack",
    payload_class: PayloadClass = "small",
    compress: Truth = "false",
    load: Load,
    measured: BenchBroker,
    shown: options.Shown,
) -> None:
    """Load a broker from processes of this machine, and measure it.

    Without --requests, --ttp, --pid or --url, it starts a broker, and ends it after the measurement.
    """
    if context.invoked_subcommand is not None:
        return
    from transfer.cli.run_bench import bench

    plan = load.plan(mode, payload_class, compress=compress == "true")
    raise typer.Exit(bench([plan], measured.measured(), as_json=shown.json, quiet=shown.quiet))


@app.command()
@grouped
def matrix(
    *,
    compress: Truth = "false",
    load: Load,
    measured: BenchBroker,
    shown: options.Shown,
) -> None:
    """Measure every mode with every payload class."""
    from transfer.broker.bench.plan import matrix as all_of
    from transfer.cli.run_bench import bench

    plans = list(all_of(load.plan(), compress=compress == "true"))
    raise typer.Exit(bench(plans, measured.measured(), as_json=shown.json, quiet=shown.quiet))


Rqueue = Annotated[
    str, typer.Option("--rqueue", metavar="HOST:PORT", help="Address of a running broker's rqueue listener.")
]
BenchTopic = Annotated[str, typer.Option("--topic", help="Topic; sink and pusher use the same one.")]
Count = Annotated[int, typer.Option(min=1, help="Number of messages.")]
RQUEUE = "127.0.0.1:6567"


@app.command()
@grouped
def sink(
    *,
    rqueue: Rqueue = RQUEUE,
    topic: BenchTopic = "bench",
    count: Count = 100_000,
    timeout: Annotated[
        float | None,
        typer.Option(parser=parse_age, metavar="TIME", help="Time to wait for the first message. [30s]"),
    ] = None,
    shown: options.Shown,
) -> None:
    """Count a pusher's messages by rqueue's protocol. Exit code 1: some are missing; 3: none arrived."""
    from transfer.cli import rqueue_bench

    patience = 30.0 if timeout is None else timeout
    code = rqueue_bench.sink(rqueue, topic, count, patience, as_json=shown.json, quiet=shown.quiet)
    raise typer.Exit(code)


@app.command()
@grouped
def pusher(
    *,
    rqueue: Rqueue = RQUEUE,
    topic: BenchTopic = "bench",
    count: Count = 100_000,
    size: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="Bytes of a message, 8 or more. [64B]"),
    ] = None,
    shown: options.Shown,
) -> None:
    """Publish numbered messages by rqueue's protocol, for a sink that waits for them."""
    from transfer.cli import rqueue_bench

    raise typer.Exit(
        rqueue_bench.pusher(rqueue, topic, count, 64 if size is None else size, as_json=shown.json)
    )
