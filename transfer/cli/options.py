"""Options that several commands share, and what their texts mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes from `4096`, `64KiB`, `1.5M`, `2GB`. Ki, Mi, Gi are powers of 1024. Raises BadParameter."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; write for instance 4096, 64KiB or 1.5M")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def show_size(nbytes: float) -> str:
    """`1.5 MB`: three digits are enough for a person."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


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
