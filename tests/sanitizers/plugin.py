"""A plugin of pytest's for runs on a sanitizer: what cannot run there, and more time for the others."""

from __future__ import annotations

import os

import pytest

#: seconds a test may take: it is 3 to 20 times slower
TIMEOUT = 600
#: names of tests, or of their files, that say nothing there, and why
LEFT_OUT: dict[str, dict[str, str]] = {
    "asan": {"test_a_thousand_connections_leave_nothing": "it counts memory, and ASan keeps what was freed"},
    "tsan": {},
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = LEFT_OUT[os.environ["TRANSFER_TEST_SANITIZER"]]
    out = [item for item in items if _is_of_the_twin(item) or _names(item) & set(left_out)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT), append=False)


def _is_of_the_twin(item: pytest.Item) -> bool:
    """Pure Python: the sanitizers see nothing of it."""
    return "pure" in item.name.rstrip("]").partition("[")[2].split("-")


def _names(item: pytest.Item) -> set[str]:
    return {item.name.partition("[")[0], item.path.name, item.name}
