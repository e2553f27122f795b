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
    monkeypatch.setattr(logger, "hasHandlers", lambda: False)  # those of the tests do not count
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
    assert logger.handlers.count(log_output._handler) == 1


def test_without_it_nothing_is_changed(logger):
    from transfer.cli import run

    before = logger.level
    assert run(["version"]) == 0
    assert (logger.level, log_output._handler) == (before, None)
