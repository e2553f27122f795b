"""`transfer bench broker`: loads a broker, measures it, and prints a table or JSON."""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transfer import units
from transfer.cli import options
from transfer.cli.command_help import App
from transfer.cli.exits import EXIT_INTERRUPTED
from transfer.cli.options import grouped, parsed, time_parser
from transfer.cli.tables import print_json, show_table
from transfer.transports.errors import AddressError, Again, OptionError

if TYPE_CHECKING:
    from transfer.broker.bench.figures import Result
    from transfer.broker.bench.plan import Plan
    from transfer.broker.bench.target import BenchTarget
    from transfer.broker.clients.rqueue import RqueueClient

app = App("Load a broker from processes of this machine, and measure it.", add_completion=False)

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
        typer.Option(
            parser=parsed(units.age), metavar="TIME", help="Duration of each measurement. [default: 10s]"
        ),
    ] = None
    connections: Annotated[
        int, typer.Option(min=1, metavar="N", help="Publishers, each a process; as many consumers.")
    ] = 1
    fanout_subs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Subscribers of fanout, each a process.")
    ] = 8
    mixed_topics: Annotated[int, typer.Option(min=2, metavar="N", help="Topics of mixed.")] = 8
    in_flight: Annotated[
        int, typer.Option(min=1, metavar="N", help="Unreceived messages of each publisher at most.")
    ] = 64

    def plan(self, mode: str = "direct-ack", payload_class: str = "small", *, compress: bool = False) -> Plan:
        """Makes the plan of a measurement. Raises OptionError."""
        from transfer.broker.bench.plan import DURATION, Mode, Plan

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
        typer.Option(
            min=1,
            metavar="PID",
            help="Process of a running broker on this machine, to measure its CPU and memory.",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="HTTP address of a running broker, to read its metrics."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make the started broker's folder there; it is removed at the end."),
    ] = None

    @contextmanager
    def target(self) -> Iterator[BenchTarget]:
        """Yields the broker: a running one, or one that it starts. Raises OptionError."""
        from transfer.broker.bench.processes import Processes
        from transfer.broker.bench.target import REQUESTS, TTP, Running, started

        if any(option is not None for option in (self.requests, self.ttp, self.pid, self.url)):
            if self.data is not None:
                raise OptionError("--data is for a broker that is started here", hint="leave out one of them")
            yield Running(self.requests or REQUESTS, self.ttp or TTP, pid=self.pid, url=self.url)
            return
        with tempfile.TemporaryDirectory(prefix="transfer-bench-", dir=self.data) as folder:
            with Processes() as crew:
                target = started(crew, Path(folder))
                yield target
                target.end()


Truth = Annotated[
    Literal["true", "false"],
    typer.Option("--compress", metavar="true|false", help="Compress payloads with LZ4."),
]


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

    Without --requests, --ttp, --pid or --url, it starts a broker, and ends it after the measurement. Exit
    code 1: messages were lost.
    """
    if context.invoked_subcommand is not None:
        return
    plan = load.plan(mode, payload_class, compress=compress == "true")
    raise typer.Exit(_measure([plan], measured, as_json=shown.json, quiet=shown.quiet))


@app.command()
@grouped
def matrix(
    *,
    compress: Truth = "false",
    load: Load,
    measured: BenchBroker,
    shown: options.Shown,
) -> None:
    """Measure every mode with every payload class. Exit code 1: messages were lost."""
    from transfer.broker.bench.plan import matrix as all_of

    plans = list(all_of(load.plan(), compress=compress == "true"))
    raise typer.Exit(_measure(plans, measured, as_json=shown.json, quiet=shown.quiet))


def _measure(plans: Sequence[Plan], measured: BenchBroker, *, as_json: bool, quiet: bool) -> int:
    """Measures one plan after the other. Returns 1 if messages were lost, 130 after Ctrl-C.

    as_json: prints each result at once, as a line. Else it prints a table at the end, also after Ctrl-C.
    """
    from transfer.broker.bench.figures import HEAD, row
    from transfer.broker.bench.measurement import measure

    results: list[Result] = []
    interrupted = False
    try:
        with measured.target() as target:
            for number, plan in enumerate(plans, 1):
                if not quiet and sys.stderr.isatty():
                    print(f"{plan.name} ({number}/{len(plans)}): {plan.duration:g} s", file=sys.stderr)
                results.append(measure(plan, target))
                if as_json:
                    print_json(results[-1].as_data())
    except KeyboardInterrupt:
        interrupted = True
    if not as_json:
        show_table(HEAD, [row(result) for result in results], right=HEAD[1:])
    if interrupted:
        print("transfer: stopped by Ctrl-C", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 1 if any(result.lost for result in results) else 0


#: each payload begins with the number of its message
_NUMBER = struct.Struct("<Q")
#: seconds without a message after which the sink ends
_IDLE_TIMEOUT = 5.0


@dataclass(slots=True)
class _Flow:
    """Sent or received messages. bytes: of payload. seconds: from the first message to the last.

    missing: message numbers below the highest one that did not arrive.
    """

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    missing: int = 0

    def report(self, *, as_json: bool) -> None:
        rate = self.messages / self.seconds if self.seconds else 0.0
        if as_json:
            print_json({**asdict(self), "messages_per_second": rate})
            return
        gap = f", {self.missing:,} missing" if self.missing else ""
        megabytes = self.bytes / max(self.seconds, 1e-9) / 1e6
        text = f"{self.messages:,} messages in {self.seconds:.3f} s: {rate:,.0f} a second"
        print(f"{text}, {megabytes:.1f} MB/s{gap}")


Rqueue = Annotated[
    str, typer.Option("--rqueue", metavar="HOST:PORT", help="Address of a running broker's rqueue listener.")
]
BenchTopic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="Topic; sink and pusher use the same one.")
]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="Number of messages.")]
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
        typer.Option(
            parser=time_parser(),
            metavar="TIME",
            help="Time to wait for the first message. [default: 30s]",
        ),
    ] = None,
    shown: options.Shown,
) -> None:
    """Count a pusher's messages by rqueue's protocol. Exit code 1: some are missing; 3: none arrived."""
    flow, begun, last, highest = _Flow(), 0.0, 0.0, -1
    with _connected(rqueue) as client:
        client.subscribe(topic)
        if not shown.quiet:
            print(f"waiting for messages of {topic!r}; start the pusher now", file=sys.stderr, flush=True)
        try:
            while flow.messages < count:
                try:
                    first = 30.0 if timeout is None else timeout
                    content = client.recv(_IDLE_TIMEOUT if flow.messages else first).content
                except Again:
                    if not flow.messages:
                        raise
                    break
                last = time.perf_counter()
                begun = begun or last
                flow.messages += 1
                flow.bytes += len(content)
                if len(content) >= _NUMBER.size:
                    highest = max(highest, _NUMBER.unpack_from(content)[0])
        finally:
            flow.seconds, flow.missing = last - begun, max(0, highest + 1 - flow.messages)
            if flow.messages:
                flow.report(as_json=shown.json)
    raise typer.Exit(1 if flow.missing else 0)


@app.command()
@grouped
def pusher(
    *,
    rqueue: Rqueue = RQUEUE,
    topic: BenchTopic = "bench",
    count: Count = 100_000,
    size: Annotated[
        int | None,
        typer.Option(
            parser=parsed(lambda given: units.size(given, least=_NUMBER.size)),
            metavar="SIZE",
            help="Size of a message, 8 bytes or more. [default: 64B]",
        ),
    ] = None,
    shown: options.Shown,
) -> None:
    """Publish numbered messages by rqueue's protocol, for a sink that waits for them."""
    nbytes = 64 if size is None else size
    # The protocol has no acknowledgements: only the sink knows which messages arrived.
    flow, rest = _Flow(), bytes(nbytes - _NUMBER.size)
    with _connected(rqueue) as client:
        begun = time.perf_counter()
        try:
            for number in range(count):
                client.publish(topic, _NUMBER.pack(number) + rest)
                flow.messages += 1
        finally:
            flow.seconds, flow.bytes = time.perf_counter() - begun, flow.messages * nbytes
            flow.report(as_json=shown.json)


@contextmanager
def _connected(address: str) -> Iterator[RqueueClient]:
    from transfer.broker.clients.rqueue import RqueueClient

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise AddressError(f"{address!r} is no HOST:PORT", hint=f"for instance {RQUEUE}")
    with RqueueClient(host.strip("[]"), int(port)) as client:
        yield client
