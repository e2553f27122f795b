"""A flood at the abtp front, and the turns of the broker's loop that it takes."""

from __future__ import annotations

import json

import zmq

from tests.broker.abtp_front import plain, running
from transfer.broker.fronts import abtp
from transfer.broker.fronts.abtp import AbtpFront


def test_a_flood_of_control_messages_has_one_turn_at_a_time(tmp_path, monkeypatch):
    """Each answer scheduled a turn beside the one whose time was over, and these did so in turn: hundreds of
    them in one round of the loop kept all other fronts waiting for seconds."""
    waiting, most = 0, 0

    def counted(schedule):
        def scheduled(*given):
            nonlocal waiting, most
            if any(getattr(one, "__name__", "") == "_turn" for one in given):
                waiting += 1
                most = max(most, waiting)
            return schedule(*given)

        return scheduled

    turn = AbtpFront._turn

    def _turn(self):
        nonlocal waiting
        waiting = max(0, waiting - 1)
        turn(self)

    monkeypatch.setattr(AbtpFront, "_turn", _turn)
    monkeypatch.setattr(abtp, "call_after_turns", counted(abtp.call_after_turns))
    monkeypatch.setattr(abtp, "TURN_SECONDS", 0.0005)
    with running(tmp_path) as broker, plain(broker) as connect:
        loop = broker.front._loop
        monkeypatch.setattr(loop, "call_soon", counted(loop.call_soon))
        consumers = connect(zmq.DEALER)
        for number in range(2000):
            said = {"type": "consumer.register", "consumer_id": f"c{number}", "mode": "direct"}
            consumers.send_multipart([b"", b"_control", json.dumps(said | {"subscriptions": ["a"]}).encode()])
        for _ in range(2000):
            consumers.recv_multipart()
    assert most <= 2  # one may be asked for by the descriptor
