"""What Spark is asked for through us: no wrong argument is taken in silence, or raises an error without what
to do. Java is not asked."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tests.arguments.test_data import assert_refused
from tests.arguments.wrong_calls import Case, outcome
from transfer.spark import local_session, register, write
from transfer.transports.errors import UsageError

NOWHERE = "run://127.0.0.1:1/one"


class NoRows:
    """A DataFrame as far as the options are looked at."""

    schema = None


def test_writes():
    words = ("if_complete: None", "run: None text", "ragged: None text", "nulls: None", "delivery: None")
    assert_refused(Case("write", write, {"df": NoRows(), "endpoint": NOWHERE}, ("columns: None", *words)))


@pytest.mark.parametrize(
    "option",
    [
        {"frame_rows": "x"},
        {"ack_timeout": -1},
        {"checksum": "maybe"},
        {"compression": "zip"},
        {"dense": "a=0"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_a_write(option):
    assert isinstance(outcome(write, {"df": NoRows(), "endpoint": NOWHERE, **option}), UsageError)


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"workers": "2"}, {"task_failures": -1}, {"name": None}, {"conf": "x"}], ids=str
)
def test_sessions(wrong):
    assert isinstance(outcome(local_session, wrong), UsageError)


def test_sessions_that_are_none():
    assert_refused(Case("register", register, {"spark": None}))
