"""`transfer broker` and its subcommands: their options. `run_broker.py` implements them."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from transfer.broker.config.options import OPTIONS
from transfer.cli import options
from transfer.cli.command_help import App
from transfer.cli.options import grouped
from transfer.transports.errors import OptionError

app = App("Run a broker: one process for transfer's sockets, TTP v2, PyBroker, rqueue and abtp.")


#: flags of frequent options; `--set` sets all others
Flags: Any = make_dataclass(
    "Flags",
    [
        (
            option.flag.replace("-", "_"),
            Annotated[str | None, typer.Option(f"--{option.flag}", metavar=option.metavar, help=option.help)],
            None,
        )
        for option in OPTIONS
        if option.flag
    ],
    frozen=True,
)


@app.callback(invoke_without_command=True)
@grouped
def broker(
    context: typer.Context,
    flags: Flags,
    *,
    port: Annotated[str | None, typer.Option(hidden=True)] = None,
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
    if port is not None:  # a flag of rqueue's broker, which has only one protocol
        raise OptionError(
            "--port: each protocol has a separate port",
            hint=f"--rqueue {port}, --pybroker, --ttp, or --requests and --abtp with an endpoint",
        )
    from transfer.broker.config.configuration import ConfigValue, parse_flag
    from transfer.cli.run_broker import run

    values = [*map(parse_flag, set or ())]
    for option in OPTIONS:
        if option.flag and (value := getattr(flags, option.flag.replace("-", "_"))) is not None:
            values.append(ConfigValue(option.name, value, f"--{option.flag}"))
    raise typer.Exit(run(values, config, as_json=json))


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
