"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from transfer.cli.inputs import Inputs
    from transfer.cli.messages import Ends
    from transfer.cli.outputs import Writer

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from `4096`, `64KiB`, `1.5M`, `2GB`. Ki, Mi, Gi are powers of 1024. Raises BadParameter."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; write for instance 4096, 64KiB or 1.5M")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def parse_size_or_none(text: str) -> int | None:
    """The same, or None for `none`. Raises BadParameter."""
    return None if _is_none(text) else parse_size(text)


def show_size(nbytes: float) -> str:
    """`1.5 MB`: three digits are enough for a person."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_age(text: str) -> float:
    """Seconds from `90`, `90s`, `15m`, `12h`, `7d`. Raises BadParameter."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no time; write for instance 90s, 12h or 7d")
    return float(match[1]) * _SECONDS[match[2].lower()]


def parse_age_or_none(text: str) -> float | None:
    """The same, or None for `none`. Raises BadParameter."""
    return None if _is_none(text) else parse_age(text)


def _is_none(text: str) -> bool:
    return text.strip().lower() == "none"


def _age(text: str) -> Any:
    return typer.Option(parser=parse_age_or_none, metavar="TIME", help=f"{text}; 'none': never.")


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
    typer.Option("--connect", "-c", metavar="ENDPOINT", help="Reach this endpoint; repeat it."),
]
Bind = Annotated[
    list[str] | None,
    typer.Option("--bind", "-b", metavar="ENDPOINT", help="Listen there; port 0 is any free one."),
]
Announce = Annotated[
    list[str] | None,
    typer.Option(
        "--announce",
        metavar="REGISTRY",
        help="Tell a broker where it listens: registry://broker:5580/name; repeat it.",
    ),
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", "-t", min=0.0, metavar="SECONDS", help="Give up after this long without progress."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to standard output, one object a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no closing line.")]
Data = Annotated[
    list[str] | None, typer.Option("--data", "-d", metavar="TEXT", help="Send this text; repeat it.")
]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of the files is one message.")]
Whole = Annotated[bool, typer.Option("--whole", help="All of standard input is one message.")]
Chunk = Annotated[
    int | None,
    typer.Option(
        "--chunk", parser=parse_size, metavar="SIZE", help="Cut files and input into messages of this size."
    ),
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Send everything this many times.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.0, metavar="SECONDS", help="Pause between messages.")
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
Raw = Annotated[bool, typer.Option("--raw", help="Write the payloads to standard output as they are.")]


# --- groups -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """What a command sends."""

    files: Files = None
    data: Data = None
    lines: Lines = False
    whole: Whole = False
    chunk: Chunk = None
    repeat: Repeat = 1

    def inputs(self) -> Inputs:
        """Raises UsageError."""
        from transfer.cli.inputs import Inputs

        return Inputs(self.files or (), self.data or (), self.lines, self.whole, self.chunk, self.repeat)


@dataclass(frozen=True)
class Where:
    """Where a command's socket binds and connects, and how long it waits."""

    connect: Connect = None
    bind: Bind = None
    timeout: Timeout = None
    announce: Announce = None

    def ends(self) -> Ends:
        """Raises UsageError."""
        from transfer.cli.messages import Ends

        return Ends(self.bind or [], self.connect or [], self.timeout, self.announce or [])


@dataclass(frozen=True)
class Asked(Where):
    """The same of a command that gives up by itself."""

    timeout: Timeout = 30.0


@dataclass(frozen=True)
class Sink:
    """Where a command puts what it receives."""

    out: Out = None
    raw: Raw = False

    def writer(self, shown: Shown) -> Writer:
        """Raises UsageError."""
        from transfer.cli.outputs import Writer

        return Writer(folder=self.out, as_json=shown.json, raw=self.raw)


@dataclass(frozen=True)
class Shown:
    """What a command says beside that."""

    json: Json = False
    quiet: Quiet = False


#: of a measurement
SECONDS = 1.0


@dataclass(frozen=True)
class Between:
    """Of the doctor, who can ask two machines."""

    serve: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Answer measurements there, e.g. 'tcp://*:7590'."),
    ] = None
    peer: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Measure each transport to a doctor that serves there."),
    ] = None
    min_gbps: Annotated[
        float,
        typer.Option(help="With --peer: fail if what is chosen by itself makes less (Gbit/s)."),
    ] = 0.0
    seconds: Annotated[
        float, typer.Option(min=0.01, max=60, help="With --peer: how long each measurement takes.")
    ] = SECONDS


@dataclass(frozen=True)
class Kept:
    """Where a spool listens, and what it keeps."""

    spool: Annotated[Path, typer.Option(metavar="FOLDER", help="Keep the rows there; made if need be.")]
    bind: Annotated[
        str, typer.Option("--bind", "-b", metavar="ENDPOINT", help="Listen there; '*' is all interfaces.")
    ] = "tcp://127.0.0.1:5570"
    rows_bind: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Take rows there; by default beside, one port higher."),
    ] = None
    retention_bytes: Annotated[
        Any,
        typer.Option(
            parser=parse_size_or_none,
            metavar="SIZE",
            help="What the folder may take, from 1 MiB on; then writers wait. 'none': no limit.",
        ),
    ] = "none"
    retention_age: Annotated[Any, _age("Delete runs so old that all their groups have read")] = "none"
    staged_age: Annotated[Any, _age("Drop rows of a job that has sent nothing for so long")] = "1d"
    failed_age: Annotated[Any, _age("Delete runs that failed so long ago")] = "7d"
    group_age: Annotated[Any, _age("Hold no rows for a group that has not read for so long")] = "30d"
    unread_age: Annotated[Any, _age("Delete runs that no group reads after so long")] = "90d"
    metrics: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="Serve metrics over HTTP there.")
    ] = None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer has to see it: each argument that is a group becomes the group's options."""
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
