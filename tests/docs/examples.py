"""Finds the examples in the documents and runs them as a reader would.

Hidden comments directly before a fence (a blank line may stand between) say what a page need not show:

    <!-- not run: why -->          only looked at
    <!-- spark -->                 needs a Spark session: tests/spark/test_examples.py
    <!-- prints -->                the next fence is what the example before it prints
    <!-- file: NAME -->            what the reader saves; it is there when a shell example names it

A fence without a language is a figure or an output and is not run. Nothing hidden is run: what a reader
pastes is the whole program.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_BLOCK = re.compile(
    r"(?P<notes>(?:<!--(?:(?!-->).)*-->\n+)*)^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_NOTE = re.compile(r"<!--\s*(not run|spark|prints|file)(?::(.*?))?\s*-->", re.DOTALL)
#: ports that examples name, for which the tests take free ones
_PORTS = re.compile(r"\b(?:5555|5570|5580|5581|5582|5590|9100)\b")
#: a broker of an example: on the ports that the example names, else on free ones
_BROKER = """
for port in TTP PYBROKER RQUEUE HTTP; do export TRANSFER_BROKER__${port}__PORT=0; done
for end in ABTP__ROUTER ABTP__PUB SPOOL__ENDPOINT; do export TRANSFER_BROKER__$end=tcp://127.0.0.1:0; done
export TRANSFER_BROKER__NATIVE__REQUESTS=tcp://127.0.0.1:5580
export TRANSFER_BROKER__NATIVE__PUSHES=tcp://127.0.0.1:5581
export TRANSFER_BROKER__NATIVE__SUBSCRIPTIONS=tcp://127.0.0.1:5582
"""
#: ends what an example left in the background, as a reader ends it by Ctrl-C
_END = 'left=$(jobs -p); if [ -n "$left" ]; then kill $left; wait; fi'


@dataclass(frozen=True)
class Example:
    """One fence. `notes` are the hidden comments before it, by their first word."""

    document: Path
    line: int
    language: str
    code: str
    notes: dict[str, str]
    output: str = ""
    files: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    def program(self) -> str:
        """The whole program, on free ports of this machine."""
        saved = (f"cat > {name} <<'SAVED'\n{code.strip(chr(10))}\nSAVED" for name, code in self.files)
        broker = _BROKER if self.language == "sh" and "transfer broker" in self.code else ""
        parts = (broker, *saved, self.code, _END if self.language == "sh" else "")
        text = "\n".join(textwrap.dedent(part).strip("\n") for part in parts)
        text = re.sub(r"//(trainer|host):", "//127.0.0.1:", text)
        return on_free_ports(text)


def on_free_ports(text: str) -> str:
    """In one pass: a free port may have the number of another of the example's ports in it."""
    named = sorted(set(_PORTS.findall(text)))
    taken = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    return _PORTS.sub(lambda found: taken[found.group()], text)


def examples() -> list[Example]:
    """Every fence of README.md and docs/, in their order."""
    found: list[Example] = []
    for document in DOCUMENTS:
        text, files = document.read_text(), dict[str, str]()
        for block in _BLOCK.finditer(text):
            notes = {word: value or "" for word, value in _NOTE.findall(block["notes"])}
            if "prints" in notes:
                last = found.pop()
                found.append(dataclasses.replace(last, output=block["code"]))
                continue
            line = text.count("\n", 0, block.start("code"))
            if "file" in notes:
                files[notes["file"].strip()] = block["code"]
            named = tuple((name, code) for name, code in files.items() if name in block["code"])
            shell = block["language"] == "sh"
            found.append(
                Example(document, line, block["language"], block["code"], notes, files=named if shell else ())
            )
    return found


def programs(language: str, *, spark: bool) -> list[Example]:
    """The examples to run in this language, with Spark or without."""
    return [
        example
        for example in examples()
        if example.language == language
        and not {"not run", "file"} & example.notes.keys()
        and ("spark" in example.notes) == spark
    ]


def run(command: list[str], folder: Path, timeout: float = 50.0) -> str:
    """Runs a program as a user would; what it printed. Fails with its errors if it failed."""
    answer = subprocess.run(
        command,
        cwd=folder, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False,
        # TRANSFER_LOCAL: as it is by default, which other tests switch off
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::ResourceWarning", "TRANSFER_LOCAL": "on"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr + answer.stdout
    assert "ResourceWarning" not in answer.stderr, answer.stderr
    return answer.stdout


def run_python(example: Example, folder: Path) -> str:
    return run([sys.executable, "-c", example.program()], folder)


def run_shell(example: Example, folder: Path) -> str:
    """`transfer` and `python` are those of the tests, installed or not. They are programs, not functions: a
    function in the background is a shell, which a signal does not pass."""
    tools = folder / "tools"
    tools.mkdir()
    for name, words in (("python", ""), ("transfer", " -m transfer")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (tools / name).chmod(0o755)
    return run(["bash", "-euc", f'PATH="{tools}:$PATH"\n{example.program()}'], folder)


def without_ports(text: str) -> str:
    """Ports differ from run to run."""
    return re.sub(r":\d{4,5}\b", ":PORT", text)
