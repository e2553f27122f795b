"""`transfer broker` and its subcommands: their options. `run_broker.py` implements them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transfer.cli import options
from transfer.cli.options import grouped
from transfer.transports.errors import OptionError

if TYPE_CHECKING:
    from transfer.broker.config.configuration import ConfigValue

app = typer.Typer(
    help="Run a broker: one process for transfer's sockets, TTP v2, PyBroker, rqueue and abtp.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _port(name: str, what: str) -> object:
    return typer.Option(f"--{name}", metavar="PORT|off", help=what)


def _endpoint(name: str, what: str) -> object:
    return typer.Option(f"--{name}", metavar="ENDPOINT|off", help=what)


@dataclass(frozen=True)
class Flags:
    """Flags for frequent options of a broker; `--set` sets all others."""

    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DIR", help="Folder for all data; it is created if it is missing."),
    ] = None
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Address that plain TCP and HTTP listen on. [127.0.0.1]"),
    ] = None
    ttp: Annotated[str | None, _port("ttp", "TTP v2. [59321]")] = None
    pybroker: Annotated[str | None, _port("pybroker", "PyBroker. [9099]")] = None
    rqueue: Annotated[str | None, _port("rqueue", "rqueue. [6567]")] = None
    http: Annotated[str | None, _port("http", "Health, metrics, the console, operators. [9180]")] = None
    requests: Annotated[
        str | None, _endpoint("requests", "transfer's DEALER and REQ. [tcp://127.0.0.1:5580]")
    ] = None
    pushes: Annotated[str | None, _endpoint("pushes", "transfer's PUSH. [tcp://127.0.0.1:5581]")] = None
    subscriptions: Annotated[
        str | None, _endpoint("subscriptions", "transfer's SUB. [tcp://127.0.0.1:5582]")
    ] = None
    abtp: Annotated[str | None, _endpoint("abtp", "abtp's ROUTER. [tcp://127.0.0.1:5555]")] = None
    abtp_pub: Annotated[
        str | None, typer.Option("--abtp-pub", metavar="ENDPOINT", help="abtp's PUB. [tcp://127.0.0.1:5556]")
    ] = None
    spool: Annotated[str | None, _endpoint("spool", "Spark's rows. [tcp://127.0.0.1:5570]")] = None
    retention_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|SHARE%|off", help="Size of the log, 1 MiB at least. [80% of the free space]"
        ),
    ] = None
    retention_age: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove older messages that all groups have acknowledged."),
    ] = None
    threads: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Threads that decode and compress large messages of abtp. [1]"),
    ] = None
    port: Annotated[str | None, typer.Option(hidden=True)] = None
    drain: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that a clean stop gives to begun work. [10]")
    ] = None

    def values(self) -> list[ConfigValue]:
        """Returns the given flags. Raises OptionError."""
        from transfer.broker.config.configuration import ConfigValue

        if self.port is not None:  # a flag of rqueue's broker, which has only one protocol
            raise OptionError(
                "--port: each protocol has a separate port",
                hint=f"--rqueue {self.port}, --pybroker, --ttp, or --requests and --abtp with an endpoint",
            )

        names = {
            "data": "broker.data", "host": "broker.host", "drain": "broker.drain",
            "ttp": "ttp.port", "pybroker": "pybroker.port", "rqueue": "rqueue.port", "http": "http.port",
            "requests": "own.requests", "pushes": "own.pushes", "subscriptions": "own.subscriptions",
            "abtp": "abtp.router", "abtp_pub": "abtp.pub", "spool": "spool.endpoint",
            "retention_bytes": "retention.bytes", "retention_age": "retention.age",
            "threads": "large.threads",
        }  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        return [
            ConfigValue(names[name], value, f"--{name.replace('_', '-')}")
            for name, value in given.items()
            if value is not None
        ]


@app.callback(invoke_without_command=True)
@grouped
def broker(
    context: typer.Context,
    flags: Flags,
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Read options from this TOML file.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option; repeatable. All users of this host see it: http.token belongs in a file.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run a broker: one process for transfer's sockets, TTP v2, PyBroker, rqueue and abtp.

    SIGTERM or Ctrl-C ends it after begun work is complete; a second one ends it at once.
    """
    if context.invoked_subcommand is not None:
        return
    from transfer.broker.config.configuration import parse_flag
    from transfer.cli.run_broker import run

    raise typer.Exit(run([*map(parse_flag, set or ()), *flags.values()], config, as_json=json))


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A broker's data.")],
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read all data of a broker, and report damage. Changes nothing. Exit code 1: something is damaged."""
    from transfer.cli.run_broker import check_folder

    raise typer.Exit(check_folder(folder, as_json=json, quiet=quiet))


@app.command(name="forget-lost")
def forget(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A broker's data.")],
) -> None:
    """Continue without a lost database: the next broker on the folder makes an empty one."""
    from transfer.cli.run_broker import forget_lost_state

    raise typer.Exit(forget_lost_state(folder))
