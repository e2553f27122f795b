"""Whoever stands on the way may cut, delay and change what passes: with TLS no changed byte is delivered."""

from __future__ import annotations

import pytest

from tests.security.relay import Relay
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, ProtocolError
from transfer.transports.tcp import TcpTransport
from transfer.transports.testing.ends import Subject, meet, plain, until
from transfer.transports.testing.faults import Faults, FaultyTransport

KINDS = SocketType.PUSH, SocketType.PULL


def messages(count=60):
    return [number.to_bytes(4, "little") * (1 + number * 37 % 3000) for number in range(count)]


def armed(faulty, faults):
    """From here on, and not from when the relay comes to it."""
    faulty.arm(there=faults)
    until(lambda: all(link._flows[0].faults is faults for link in list(faulty._links)), "the faults")


def carried(core, pki, arm, sent, *, token="", **faults):
    """(what arrived, the error at its end or None), when these faults begin after the handshake."""
    security = pki.security(token=token)
    came: list[bytes] = []
    with FaultyTransport(TcpTransport(), **faults) as faulty:
        subject = Subject(lambda: faulty, "tcp://127.0.0.1:*", core, security=security)
        with meet(subject, kinds=KINDS, send_high_water=0) as ends:
            assert ends.at_accepting.agreement.encrypted and ends.at_accepting.agreement.authenticated
            if arm is not None:
                armed(faulty, arm)
            for each in sent:
                try:
                    assert ends.connecting.send(plain(each))
                except Broken:
                    break

            def ended():
                try:
                    ends.connecting.flush()
                except Broken:
                    pass
                try:
                    while (frames := ends.accepting.receive()) is not None:
                        came.extend(bytes(frame) for frame in frames)
                except (Broken, ProtocolError) as error:
                    return error
                return len(came) == len(sent) and "all"

            end = until(ended, "the end")
    return came, None if end == "all" else end


@pytest.mark.parametrize("at", [0, 1, 3, 4, 5, 30, 1000, 16_400, 50_000])
def test_changed_bytes_are_never_delivered(core, pki, at):
    sent = messages()
    if at in (3, 4):  # a longer record would be waited for
        sent = sent * 3
    came, end = carried(core, pki, Faults(corrupt_at=at), sent)
    assert came == sent[: len(came)] and len(came) < len(sent)
    assert isinstance(end, ProtocolError) and end.reason == "tls"


def test_without_tls_it_would_be_delivered(core):
    """So the tests above see what TLS does, and not the frames' own checks."""
    with FaultyTransport(TcpTransport()) as faulty:
        with meet(Subject(lambda: faulty, "tcp://127.0.0.1:*", core), kinds=KINDS) as ends:
            armed(faulty, Faults(corrupt_at=100))
            until(lambda: ends.connecting.send(plain(bytes(200))), "room")
            frames = until(ends.accepting.receive, "the message")
            assert bytes(frames[0]) != bytes(200)


@pytest.mark.parametrize(
    "faults",
    [{"there": Faults(chunk=7), "back": Faults(chunk=7)}, {"there": Faults(delay=0.01)}, {"buffer": 1}],
    ids=["seven bytes at a time", "late", "little room"],
)
def test_pieces_and_delays_change_nothing(core, pki, faults):
    sent = messages(20)
    assert carried(core, pki, None, sent, token="a304e50671b94706bf5161f81083bdfa", **faults) == (
        sent,
        None,
    )


@pytest.mark.parametrize("after", [1, 5, 1000, 16_406, 40_000])
def test_a_cut_ends_it(core, pki, after):
    """What arrived is what was sent, from its begin; where it ends in a message, that is told."""
    sent = messages()
    came, end = carried(core, pki, Faults(cut_after=after), sent)
    assert came == sent[: len(came)] and len(came) < len(sent)
    assert isinstance(end, (Broken, ProtocolError))


def test_a_handshake_that_is_damaged(pair, pki):
    """In any of its parts: nobody is connected, and both say so."""
    server, address = pair.serve(pki.security(), timeout=2)
    for at in (0, 5, 60, 300, 700):
        passed = [0]

        def damaged(connecting, data, at=at, passed=passed):
            if not connecting:
                return data
            begin, passed[0] = passed[0], passed[0] + len(data)
            place = at - begin
            if not 0 <= place < len(data):
                return data
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

        with Relay(address, damaged) as between:
            client = pair.reach(between.address, pki.security(), patience=2)
            until(lambda: client.failed or client.connected, "the end")  # noqa: B023
        assert not client.connected and not server.connected, at
