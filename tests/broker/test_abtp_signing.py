"""Control messages of abtp/1 that are signed with a token: pure rules, and a broker that wants them so."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings, strategies as st

from tests.broker.in_process_broker import running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.protocols.abtp_signing import SIZE, SKEW_US, Signatures, Signer
from transfer.transports.errors import ProtocolError, SecurityError
from transfer.transports.security import credentials
from transfer.transports.security.settings import Security

DOCUMENT = Path(__file__).parents[2] / "docs/protocols/abtp.md"
TOKEN = "37a2cf99f5bc6472facfba0918a3e705c767b9ff5a55fa2bac30dd2cc961231b"
OTHER = "dcedc40ecbd03c07c82e6ea338cd000224e28a37db9ea5c60c0c2eff8542e3a4"
NOW = 1_700_000_000_000_000
#: whoever answers gets the messages; the token is for signatures alone here
SECURITY = Security(token=TOKEN, tokenless=True)
SAID = b'{"type":"consumer.heartbeat","consumer_id":"w","session_id":"s-1"}'


def signer(token=TOKEN, now=NOW):
    return Signer(token.encode, lambda: now)


def signatures(*tokens, now=NOW):
    return Signatures(lambda: [token.encode() for token in tokens or (TOKEN,)], lambda: now)


def refused(checks, data, signature, consumer="w"):
    with pytest.raises(ProtocolError) as error:
        checks.check(consumer, data, signature)
    assert error.value.reason == "unauthorized_control"
    return str(error.value)


# --- the rules ----------------------------------------------------------------------------------------------


def test_what_the_document_shows():
    text = DOCUMENT.read_text()
    block = re.search(r"```python\n(import hashlib.*?)```", text, re.DOTALL).group(1)
    names = {"data": SAID, "token": TOKEN, "at_us": NOW}
    exec(block, names)
    assert names["signature"] == signer().sign(SAID)
    shown = re.search(r"At the time 1700000000000000.*?`([0-9a-f]{80})`", text, re.DOTALL).group(1)
    assert bytes.fromhex(shown) == signer().sign(SAID)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2 * SKEW_US, 2 * SKEW_US)), max_size=30))
def test_each_message_counts_once_and_in_its_order(said):
    """Against a model: by consumer, the latest that was taken."""
    checks, latest = signatures(), {}
    checks._began -= 10 * SKEW_US
    for consumer, apart in said:
        signature = signer(now=NOW + apart).sign(SAID)
        if abs(apart) <= SKEW_US and apart > latest.get(consumer, -SKEW_US - 1):
            checks.check(consumer, SAID, signature)
            latest[consumer] = apart
        else:
            refused(checks, SAID, signature, consumer)
        # Those of long ago are forgotten: they are too old to be accepted again.
        assert checks._last.items() <= {name: NOW + at for name, at in latest.items()}.items()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, SIZE + len(SAID) - 1), st.integers(1, 255))
def test_any_other_byte_is_refused_and_changes_nothing(place, by):
    checks, signature = signatures(), signer().sign(SAID)
    whole = bytearray(signature + SAID)
    whole[place] ^= by
    refused(checks, bytes(whole[SIZE:]), bytes(whole[:SIZE]))
    assert not checks._last
    checks.check("w", SAID, signature)
    assert checks._last == {"w": NOW}


def test_signatures_of_a_clock_that_stands_still_or_goes_back():
    clock = iter((NOW, NOW, NOW - 5_000_000))
    one, checks = Signer(TOKEN.encode, lambda: next(clock)), signatures()
    for count in range(3):
        checks.check("w", SAID, one.sign(SAID))
        assert checks._last == {"w": NOW + count}


@pytest.mark.parametrize("signature", [b"", b"x", bytes(SIZE), bytes(SIZE + 1)])
def test_no_signature(signature):
    wrong = "with another token" if len(signature) == SIZE else f"requires a signature of {SIZE} bytes"
    assert wrong in refused(signatures(), SAID, signature)


def test_other_tokens():
    assert "another token" in refused(signatures(OTHER), SAID, signer().sign(SAID))
    signatures(OTHER, TOKEN).check("w", SAID, signer().sign(SAID))
    refused(Signatures(lambda: ()), SAID, signer().sign(SAID))


def test_clocks_apart_are_named():
    late = signer(now=NOW + SKEW_US + 9_000_000)
    assert "+69 s" in refused(signatures(), SAID, late.sign(SAID))


def test_consumers_of_long_ago_are_forgotten():
    now = NOW
    checks = Signatures(lambda: [TOKEN.encode()], lambda: now)
    for number in range(1000):
        now = NOW + number * 1_000_000
        checks.check(str(number), SAID, Signer(TOKEN.encode, lambda: now).sign(SAID))  # noqa: B023 - of now
    assert len(checks._last) <= SKEW_US / 1_000_000 + 1


def test_what_was_said_before_it_began():
    """To the broker before it, or to another one."""
    signature = signer(now=NOW - 1).sign(SAID)
    assert "before this broker began" in refused(signatures(), SAID, signature)
    signatures(now=NOW - 1).check("w", SAID, signature)


# --- a broker that wants them -------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path):
    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", signed=True)
    with running(tmp_path / "data", abtp=where, security=SECURITY) as made:
        yield made


def test_a_consumer_that_signs_is_served(broker):
    where = broker.endpoints["abtp router"]
    with (
        AbtpConsumer("w", ["a.*"], where, security=SECURITY, sign=True, heartbeat=0.02) as consumer,
        AbtpProducer(where, security=SECURITY) as producer,
    ):
        for number in range(50):
            producer.publish("a.b", number)
        for number in range(50):
            message = consumer.recv(10)
            assert message.payload == number
            consumer.ack(message, confirm=number % 2 == 0)
        consumer.heartbeat()
        assert not consumer.refused


def test_one_that_does_not_is_refused(broker):
    where = broker.endpoints["abtp router"]
    with pytest.raises(ProtocolError, match="is not signed") as error:
        AbtpConsumer("w", ["a.*"], where, security=SECURITY)
    assert error.value.reason == "unauthorized_control"
    with pytest.raises(ProtocolError, match="another token"):
        AbtpConsumer("w", ["a.*"], where, security=Security(token=OTHER, tokenless=True), sign=True)


def test_what_is_said_again_or_in_anothers_name_is_refused(broker):
    where = broker.endpoints["abtp router"]
    with AbtpConsumer("w", ["a.*"], where, security=SECURITY, sign=True, heartbeat=60.0) as consumer:
        sent = []
        send = consumer._socket.send_multipart
        consumer._socket.send_multipart = lambda frames, flags: sent.append(frames) or send(frames, flags)
        with AbtpProducer(where, security=SECURITY) as producer:
            producer.publish("a.b", 1)
        message = consumer.recv(10)
        consumer.heartbeat()
        (_, _, beat, signature) = sent[-1]
        with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
            thief.connect(where)
            for said in (beat, beat.replace(b'"w"', b'"v"')):
                thief.send_multipart([b"", b"_control", said, signature])
                assert thief.poll(10_000)
                answer = json.loads(thief.recv_multipart()[-1])
                assert answer["code"] == "unauthorized_control", answer
            ack = {"type": "ack", "consumer_id": "w", "message_id": message.message_id, "reply": True,
                   "session_id": message.session_id, "delivery_id": message.delivery_id}  # fmt: skip
            thief.send_multipart([b"", b"_control", json.dumps(ack).encode()])
            assert thief.poll(10_000)
            answer = json.loads(thief.recv_multipart()[-1])
            assert (answer["code"], answer["delivery_id"]) == ("unauthorized_control", message.delivery_id)
        consumer.ack(message, confirm=True)


def test_the_token_is_changed_while_a_consumer_is_there(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    security = Security(token_file=str(file), tokenless=True)
    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", signed=True)
    with running(tmp_path / "data", abtp=where, security=security) as broker:
        router = broker.endpoints["abtp router"]
        with AbtpConsumer("w", ["a.*"], router, security=security, sign=True) as consumer:
            for tokens in ((TOKEN, OTHER), (OTHER, TOKEN), (OTHER,)):
                file.write_text("\n".join(tokens))
                until = time.monotonic() + 2.5 * credentials._LOOK  # both sides have read it
                while time.monotonic() < until:
                    consumer.heartbeat()
        with pytest.raises(ProtocolError, match="another token"):
            AbtpConsumer("v", [], router, security=SECURITY, sign=True)


def test_signing_wants_a_token(tmp_path):
    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", signed=True)
    with pytest.raises(SecurityError, match=r"abtp\.signed"), running(tmp_path, abtp=where):
        pass
    with pytest.raises(SecurityError, match="no token to sign with"):
        AbtpConsumer("w", [], "tcp://127.0.0.1:1", security=Security(), sign=True)


def test_a_broker_that_does_not_ask_passes_over_signatures(tmp_path):
    where = AbtpEndpoints("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    with running(tmp_path, abtp=where) as broker:
        endpoint = broker.endpoints["abtp router"]
        with (
            AbtpConsumer("w", ["t"], endpoint, security=SECURITY, sign=True) as consumer,
            AbtpProducer(endpoint, security=SECURITY) as producer,
        ):
            consumer.heartbeat()
            producer.publish("t", 1)
            message = consumer.recv(10)
            consumer.ack(message, confirm=True)
        assert message.payload == 1
        assert broker.hub.direct.dispatcher.counts["acked"] == 1


def test_a_clock_that_was_ahead_is_named():
    now = [10**15]
    books = Signatures(lambda: [b"secret"], lambda: now[0])
    ahead = Signer(lambda: b"secret", lambda: now[0] + 50_000_000)
    books.check("w", b"{}", ahead.sign(b"{}"))
    right = Signer(lambda: b"secret", lambda: now[0])
    with pytest.raises(ProtocolError, match="50 s ahead of this broker's clock"):
        books.check("w", b"{}", right.sign(b"{}"))
    now[0] += 51_000_000
    books.check("w", b"{}", right.sign(b"{}"))
