"""The bar of long work, and the closing line."""

from __future__ import annotations

import io
import json

import pytest

from transfer.cli import outputs, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch) -> Terminal:
    """Standard error is a terminal, and any work is long. (No fixture: pytest changes streams between.)"""
    made = Terminal()
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REDRAW", 0.0)
    monkeypatch.setattr(progress.sys, "stderr", made)
    return made


@pytest.mark.parametrize("totals", [{"total_bytes": 100}, {"total_messages": 2}, {}])
def test_long_work_shows_a_bar(monkeypatch, totals):
    terminal = on_a_terminal(monkeypatch)
    with progress.Progress("sent", **totals) as shown:
        shown.add(50)
        shown.add(50)
        assert shown._bar is not None
        assert shown._bar.tasks[0].completed == (2 if "total_messages" in totals else 100)
    shown.close()
    assert "2 messages" in terminal.getvalue()
    assert "sent 2 messages, 100 B (" in terminal.getvalue()


def test_short_work_shows_none(monkeypatch):
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 1000.0)
    with progress.Progress("sent") as shown:
        shown.add(50)
        assert shown._bar is None


def test_lines_on_a_terminal_are_progress_enough(monkeypatch):
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(progress.sys, "stdout", Terminal())
    with progress.Progress("received", lines=True) as shown:
        shown.add(50)
        assert shown._bar is None


def test_a_pipe_gets_no_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.Progress("sent") as shown:
        shown.add(1)
    shown.close()
    assert capsys.readouterr().err == "sent 1 message, 1 B\n"


def test_the_closing_line_for_programs(capsys):
    shown = progress.Progress("sent", as_json=True)
    shown.add(7)
    shown.close()
    told = json.loads(capsys.readouterr().out)
    assert (told["sent"], told["bytes"]) == (1, 7)
    assert told["seconds"] >= 0


def test_quiet_is_quiet(capsys):
    shown = progress.Progress("sent", quiet=True)
    shown.add(7)
    shown.close()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_no_control_characters_of_a_sender(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(outputs.sys, "stdout", terminal)
    outputs.Writer().write(outputs.ReceivedMessage("bytes", [b"a\x1b]0;title\x07", b"b\nc"], 13))
    assert terminal.getvalue() == "a\\x1b]0;title\\x07\tb\nc\n"
