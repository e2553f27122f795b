"""`--help` of every command: usage lines, metavars, defaults, units and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.broker.in_process_broker import default_of
from tests.cli.conftest import ROOT
from tests.cli.test_every_output import commands
from transfer.broker.config.options import OPTIONS

COMMANDS = dict(commands())
#: what follows [OPTIONS] in the usage lines of commands with arguments
ARGUMENTS = {
    **dict.fromkeys(("push", "pub", "req", "rep"), "[FILE]..."),
    "as-zmq": "PROGRAM [ARGS]...",
    "health": "[URL]",
    "certificates": "FOLDER",
    "broker check": "DIR",
    "broker forget-lost": "DIR",
    "runs list": "[[run://]HOST:PORT[/NAME]]",
    "runs verify": "[[run://]HOST:PORT[/NAME] | FOLDER]",
    "runs salvage": "FOLDER",
    "runs forget-group": "[run://]HOST:PORT/NAME GROUP",
    **dict.fromkeys(
        (f"runs {name}" for name in ("inspect", "delete", "groups", "lineage")), "[run://]HOST:PORT/NAME"
    ),
}


def help_of(words: str) -> str:
    command = COMMANDS[words]
    with command.make_context(f"transfer {words}".strip(), [], resilient_parsing=True) as context:
        return command.get_help(context)


@pytest.mark.parametrize("words", sorted(COMMANDS.keys() - {"bench"}))
def test_help_is_whole(words):
    text, command = help_of(words), COMMANDS[words]
    usage = " ".join(text.partition("\n\n")[0].split())
    rest = "COMMAND [ARGS]..." if hasattr(command, "commands") else ARGUMENTS.get(words, "")
    assert usage == f"Usage: transfer {words} [OPTIONS] {rest}".replace("  ", " ").strip()
    assert not re.search(r"<\w", text), "a type of Python stands in it"
    flat = " ".join(text.split())
    assert (
        "Exit codes: 0 success, 1 an error, 2 wrong usage or an address in use, 3 a time-out, 130 Ctrl-C."
        in flat
    )
    for one in command.params:
        name, takes = one.opts[-1], not getattr(one, "is_flag", False) and not getattr(one, "count", False)
        if one.param_type_name == "option" and takes and not getattr(one, "hidden", False):
            assert one.metavar, f"{name} has no metavar"
        if isinstance(one.default, str | int | float) and one.default and takes:
            assert f"[default: {one.default}" in flat or one.default == "", f"the default of {name}"
    for unit in ("SIZE", "TIME"):
        metavars = {word for one in command.params for word in (one.metavar or "").split("|")}
        assert (f"{unit}: " in flat) == (unit in metavars)


def test_defaults_of_the_broker_are_those_of_its_settings():
    flat = " ".join(help_of("broker").split())
    for option in OPTIONS:
        if option.flag and option.name != "broker.data":
            found = re.search(r" \[default: ([^]]+)\]$", option.help)
            assert found is not None, option.name
            assert option.read(found[1]) == default_of(option), option.name
            assert option.help in flat


def test_the_list_of_commands_says_what_bench_needs():
    (line,) = [line for line in help_of("").splitlines() if line.split()[:1] == ["bench"]]
    assert "needs the repository" in line and "..." not in line


def test_bench_without_the_repository_says_what_is_there(tmp_path):
    program = "import sys; sys.path = [p for p in sys.path if p]; from tensor_transfer import main; main()"
    hidden = f"import sys; sys.modules['bench'] = None; {program}"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "bench", "--help"],
        cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "`transfer bench broker`" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["transfer", "tensor-transfer"])
def test_the_usage_line_has_the_name_of_the_command(name):
    program = f"import sys; sys.argv[0] = '/usr/bin/{name}'; from tensor_transfer import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "push", "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"Usage: {name} push [OPTIONS] [FILE]...\n")


TO = ("-c", "tcp://127.0.0.1:9")
SPOOL = ("serve", "--spool", "x")
BROKER = ("broker", "--data", "x")
ADMIN = ("--url", "http://127.0.0.1:1")
#: sizes and times that no option takes, and counts of nothing; the last word is the value of the one before
WRONG = [
    *[("push", "-d", "x", *TO, *pair) for pair in (("--chunk", "0"), ("--chunk", "x"), ("--repeat", "0"))],
    *[("push", "-d", "x", *TO, "--count", value) for value in ("0", "-1")],
    *[("push", "-d", "x", *TO, "--timeout", value) for value in ("nan", "inf", "-1", "soon")],
    ("push", "-d", "x", *TO, "--interval", "nan"),
    ("pub", "-d", "x", *TO, "--wait", "-1"),
    *[("pull", *TO, "--count", value) for value in ("0", "-2")],
    *[
        (*SPOOL, f"--{age}-age", v)
        for age in ("retention", "staged", "failed", "group", "unread")
        for v in "0x"
    ],
    *[(*SPOOL, "--retention-bytes", value) for value in ("0", "1000", "x")],
    (*SPOOL, "--metrics", "x"),
    *[(*BROKER, "--retention-bytes", value) for value in ("0", "1000", "0%", "x")],
    *[(*BROKER, "--retention-age", value) for value in ("0", "x")],
    (*BROKER, "--drain-timeout", "x"),
    (*BROKER, "--threads", "0"),
    *[
        ("bench", "broker", f"--{name}", "0")
        for name in ("connections", "fanout-subs", "in-flight", "duration")
    ],
    ("bench", "broker", "pusher", "--size", "7"),
    ("bench", "broker", "sink", "--count", "0"),
    ("doctor", "--peer", "127.0.0.1:1", "--seconds", "0"),
    ("doctor", "--peer", "127.0.0.1:1", "--min-gbps", "-1"),
    ("health", "--timeout", "0"),
    ("certificates", "x", "--days", "0"),
    ("runs", "list", "--timeout", "0"),
    ("runs", "lineage", "127.0.0.1:1/x", "--step", "-1"),
    *[("dlq", "list", *ADMIN, *pair) for pair in (("--limit", "0"), ("--after", "-1"), ("--timeout", "0"))],
    ("audit", "events", *ADMIN, "--limit", "0"),
    ("topics", "list", *ADMIN, "--limit", "0"),
]


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_wrong_size_time_or_count_is_named_with_its_option(words, capsys, tmp_path, monkeypatch):
    """Some sent nothing in silence, some did not say which option it was, some ended with a traceback."""
    from transfer.cli import run

    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    said = capsys.readouterr().err
    option, value = words[-2:]
    assert option in said and "Traceback" not in said, said
    assert value in said or "greater than or equal" in said or "range" in said, said
    assert not list(tmp_path.iterdir())


TIMES, SIZES = "such as 90 (seconds), 200ms, 15m or 7d", "such as 1500000, 64MiB or 1.5G"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*SPOOL, "--staged-age", "x"), f"'--staged-age': 'x' is not a time from 0.001 s on, {TIMES}"),
        (
            (*SPOOL, "--retention-bytes", "9"),
            f"'--retention-bytes': '9' is not a size from 1 MiB on, {SIZES}",
        ),
        ((*BROKER, "--retention-bytes", "9"), f"'9'\n  hint: it has to be a size from 1 MiB on, {SIZES}"),
        (
            (*BROKER, "--set", "spool.staged_age=0"),
            "--set spool.staged_age is '0'\n  hint: it has to be a time",
        ),
    ],
    ids=lambda given: given[-1] if isinstance(given, tuple) else "",
)
def test_a_wrong_value_says_what_is_accepted(words, told, capsys):
    from transfer.cli import run

    assert run(words) == 2
    assert told in capsys.readouterr().err
