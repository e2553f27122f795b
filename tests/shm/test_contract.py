"""The contract of streams over the local transport."""

from __future__ import annotations

import pytest

from transfer.transports import registry
from transfer.transports.testing import carrying, checks, meeting

CARRYING = [check for check in checks.CHECKS if check.__module__ == carrying.__name__]


@pytest.mark.parametrize("check", [meeting.check_meets, *CARRYING], ids=lambda check: check.__name__)
def test_contract(check, core, monkeypatch):
    made = []
    meet = carrying.meet

    def noted(*arguments, **limits):
        made.append(True)
        return meet(*arguments, **limits)

    monkeypatch.setattr(carrying, "meet", noted)
    monkeypatch.setattr(meeting, "meet", noted)
    check(checks.Subject(lambda: registry.open_transport("tcp"), "tcp://127.0.0.1:*", core, "local"))
    assert made
