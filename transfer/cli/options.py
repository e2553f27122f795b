"""Options that several commands share, and their parsers."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from transfer import units
from transfer.transports.security.guard import is_loopback

if TYPE_CHECKING:
    from transfer.cli.admin import Admin
    from transfer.cli.inputs import Inputs
    from transfer.cli.outputs import Writer
    from transfer.transports.security.settings import Security


def parsed(read: Callable[[object], Any]) -> Callable[[str], Any]:
    """Returns a parser of an option. read: raises ValueError, whose text says what is allowed.

    It raises BadParameter, to which Typer adds the option's name.
    """

    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not {error}") from None

    return parse


def time_parser(least: float = 0.0, most: float = math.inf) -> Callable[[str], float]:
    """Returns a parser of a time within these limits."""
    return parsed(lambda given: units.seconds(given, least, most))


def _log_limit(given: object) -> int:
    from transfer.log.retention import SMALLEST_LOG

    return units.size(given, least=SMALLEST_LOG)


def _age(text: str) -> Any:
    parser = parsed(units.or_off(units.age))
    return typer.Option(parser=parser, metavar="TIME|none", help=f"{text}; none: never.")


Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Each file is one message; .npy is a tensor, .safetensors a dict of tensors. "
        "Without files, or for '-', each line of standard input is one message.",
    ),
]
Connect = Annotated[
    list[str] | None,
    typer.Option("--connect", "-c", metavar="ENDPOINT", help="Connect to this endpoint; may be repeated."),
]
Bind = Annotated[
    list[str] | None,
    typer.Option("--bind", "-b", metavar="ENDPOINT", help="Bind to this endpoint; port 0 is a free one."),
]
Announce = Annotated[
    list[str] | None,
    typer.Option(
        "--announce",
        metavar="REGISTRY",
        help="Register its endpoint with a broker: registry://broker:5580/name; may be repeated.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        "--count", "-n", min=1, metavar="N", help="Stop after this many messages. [default: no limit]"
    ),
]
_TIMEOUT = ("--timeout", "-t")
_GIVE_UP = "Give up after this long without progress."
Timeout = Annotated[
    float | None,
    typer.Option(*_TIMEOUT, parser=time_parser(), metavar="TIME", help=f"{_GIVE_UP} [default: never]"),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to standard output, one object a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no closing line.")]
Data = Annotated[
    list[str] | None, typer.Option("--data", "-d", metavar="TEXT", help="Send this text; may be repeated.")
]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of the files is one message.")]
Whole = Annotated[bool, typer.Option("--whole", help="All of standard input is one message.")]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        parser=parsed(units.size),
        metavar="SIZE",
        help="Split files and input into messages of this size.",
    ),
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Send everything this many times.")]
Interval = Annotated[
    float, typer.Option("--interval", parser=time_parser(), metavar="TIME", help="Pause between messages.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FOLDER",
        help="Write each message to a file there: .bin, .npy or .safetensors.",
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Write the payloads to standard output unchanged.")]


# --- groups -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Options for the messages that a command sends."""

    files: Files = None
    data: Data = None
    lines: Lines = False
    whole: Whole = False
    chunk: Chunk = None
    repeat: Repeat = 1

    def inputs(self) -> Inputs:
        """Returns the messages. Raises UsageError."""
        from transfer.cli.inputs import Inputs

        return Inputs(self.files or (), self.data or (), self.lines, self.whole, self.chunk, self.repeat)


@dataclass(frozen=True)
class Where:
    """Options for the endpoints and the time-out of a command's socket."""

    connect: Connect = None
    bind: Bind = None
    timeout: Timeout = None
    announce: Announce = None


@dataclass(frozen=True)
class WhereWithTimeout(Where):
    """Where, with a default time-out."""

    timeout: Annotated[
        float | None, typer.Option(*_TIMEOUT, parser=time_parser(), metavar="TIME", help=_GIVE_UP)
    ] = 30.0


@dataclass(frozen=True)
class Sink:
    """Options for the output of received messages."""

    out: Out = None
    raw: Raw = False

    def writer(self, shown: Shown) -> Writer:
        """Returns the writer. Raises UsageError."""
        from transfer.cli.outputs import Writer

        return Writer(folder=self.out, as_json=shown.json, raw=self.raw)


@dataclass(frozen=True)
class Shown:
    """Options for a command's other output."""

    json: Json = False
    quiet: Quiet = False


#: default duration of a measurement
SECONDS = 1.0


def _rate(given: object) -> float:
    try:
        found = float(str(given))
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ValueError("a number from 0 on, such as 90 or 2.5")
    return found


@dataclass(frozen=True)
class Between:
    """The doctor's options for measurements between two machines."""

    serve: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Answer measurements at this endpoint, e.g. 'tcp://*:7590'."),
    ] = None
    peer: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Measure each transport to the doctor that serves there."),
    ] = None
    min_gbps: Annotated[
        float,
        typer.Option(
            parser=parsed(_rate),
            metavar="GBIT/S",
            help="With --peer: fail if the automatic transport is slower.",
        ),
    ] = 0.0
    seconds: Annotated[
        float,
        typer.Option(
            parser=time_parser(0.01, 60), metavar="TIME", help="With --peer: duration of each measurement."
        ),
    ] = SECONDS


@dataclass(frozen=True)
class Kept:
    """Options of a spool: where it listens, and what it keeps."""

    spool: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the rows; it is created if it is missing.")
    ]
    bind: Annotated[
        str,
        typer.Option(
            "--bind", "-b", metavar="ENDPOINT", help="Endpoint to listen at; '*' is all interfaces."
        ),
    ] = "tcp://127.0.0.1:5570"
    rows_bind: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Endpoint for rows. [default: one port above --bind]"),
    ] = None
    retention_bytes: Annotated[
        Any,
        typer.Option(
            parser=parsed(units.or_off(_log_limit)),
            metavar="SIZE|none",
            help="Size of the folder, 1 MiB at least; beyond it writers wait. none: no limit.",
        ),
    ] = "none"
    retention_age: Annotated[Any, _age("Delete runs of this age that all their groups have read")] = "none"
    staged_age: Annotated[Any, _age("Drop rows of a job that has sent nothing for this long")] = "1d"
    failed_age: Annotated[Any, _age("Delete runs this long after their failure")] = "7d"
    group_age: Annotated[Any, _age("Keep no rows for a group that has not read for this long")] = "30d"
    unread_age: Annotated[Any, _age("Delete runs of this age that no group reads")] = "90d"
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve metrics over HTTP at this port. [default: none]"),
    ] = None


@dataclass(frozen=True)
class Reached:
    """The broker that receives the requests."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="TRANSFER_ADMIN_URL",
            metavar="URL",
            help="The broker's HTTP address. [default: that in this machine's configuration]",
        ),
    ] = ""
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="ADMIN_TOKEN",
            metavar="TOKEN",
            help="The operators' token, if the broker has one. All users of this host see command lines: "
            "prefer ADMIN_TOKEN.",
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            *_TIMEOUT,
            parser=time_parser(0.1),
            metavar="TIME",
            help="Give up without a complete answer after this long.",
        ),
    ] = 30.0

    def admin(self) -> Admin:
        """Returns a client of the broker at --url, or of the one in the environment and its file.

        It uses HTTPS if there are certificates, and then the clients' token if there is no operators' token.
        Raises AddressError, OptionError, SecurityError, UsageError.
        """
        from transfer.cli.admin import Admin
        from transfer.cli.health import configured, security_of, target

        options = configured()
        security = security_of(options)
        place = target(self.url or None, options, security, live=False)
        secure = place.secure if self.url else place.secure or security.tls
        url = self.url or str(replace(place, secure=secure, path=""))
        token = self.token
        if not token and (
            secure or is_loopback(place.host)
        ):  # the network must not see the token in plain text
            token = options.get("http.token")
        return Admin(url, token or (_shared_token(security) if secure else None), self.timeout, security)


def _shared_token(security: Security) -> str | None:
    """Returns the token that all clients share, if there is one. Raises SecurityError."""
    from transfer.transports.core import python_tls
    from transfer.transports.security.credentials import Credentials

    tokens = Credentials(security, python_tls).tokens()
    return tokens[0].decode() if tokens else None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Converts a command for typer: each argument that is a dataclass becomes the dataclass's options."""
    flat: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            flat += inspect.signature(hints[name], eval_str=True).parameters.values()
        else:
            flat.append(parameter.replace(annotation=hints[name]))
    flat = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in flat]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in fields(group)})
        command(**given)

    called.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in flat}
    return called
