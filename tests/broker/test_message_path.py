"""How many Python calls a kept TTP message takes from socket to subscriber: the way stays straight."""

from __future__ import annotations

import pytest

from tests.broker.message_path import count


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(
    ("burst", "messages", "most_calls", "most_entries"), [(1, 500, 60, 3), (64, 2560, 45, 2)]
)
def test_the_way_of_a_kept_message_is_straight(tmp_path, burst, messages, most_calls, most_entries, answered):
    way = count(tmp_path, messages=messages, burst=burst, answered=answered)
    print(way)
    assert way.own.calls_each <= most_calls, way.trace()
    assert 0 < way.own.hub_entries_each <= most_entries, way.trace()
