"""`transfer -v`: what the library logs, on standard error."""

from __future__ import annotations

import logging

import pytest

from transfer import log_output


@pytest.fixture
def logger(monkeypatch):
    logger = logging.getLogger("transfer")
    level = logger.level
    monkeypatch.setattr(log_output, "_handler", None)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [])  # those of the tests
    yield logger
    if log_output._handler is not None:
        logger.removeHandler(log_output._handler)
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("flag", "level"), [("-v", logging.INFO), ("-vv", logging.DEBUG), ("--verbose", logging.INFO)]
)
def test_it_sets_the_level_once(logger, flag, level):
    from transfer.cli import run

    for _ in range(2):
        assert run([flag, "version"]) == 0
    assert logger.level == level
    assert len(logger.handlers) == 1


def test_without_it_nothing_is_changed(logger):
    from transfer.cli import run

    before = logger.level
    assert run(["version"]) == 0
    assert (logger.level, logger.handlers) == (before, [])
