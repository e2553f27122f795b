"""SUBs with `?begin=` where the broker comes back with another log: a backup, a copy, an empty folder."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

import transfer
from tests.broker.in_process_broker import FREE, running
from tests.broker.test_catch_up import publish, received, subscribed
from tests.ports import free_ports
from tests.sockets.conftest import KeepingContext
from tests.sockets.helpers import eventually
from transfer.broker.clients.native import BrokerClient
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.storage.log_epochs import LogEpochs
from transfer.log import Log
from transfer.sockets.connections import topic_positions
from transfer.sockets.connections.topic_positions import TopicPosition
from transfer.transports.errors import AddressError, UsageError


@pytest.fixture
def context():
    with KeepingContext() as made:
        yield made


class Site:
    """A broker's ports, which stay, and its folder, which may not."""

    def __init__(self, folder):
        self.folder = folder
        self.native = NativeSettings(*(f"tcp://127.0.0.1:{port}" for port in free_ports(3)))
        self._run = ExitStack()

    def start(self):
        self.broker = self._run.enter_context(running(self.folder, native=self.native))
        self.client = self._run.enter_context(BrokerClient(self.broker.endpoints["requests"]))
        return self.broker

    def stop(self):
        self._run.close()


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path / "data")
    made.start()
    yield made
    made.stop()


def restore(site, backup):
    site.stop()
    shutil.rmtree(site.folder)
    shutil.copytree(backup, site.folder)
    site.start()


def backed_up(site, tmp_path):
    site.stop()
    shutil.copytree(site.folder, tmp_path / "backup")
    site.start()
    return tmp_path / "backup"


@pytest.mark.parametrize("begin", ["old", "new"])
@pytest.mark.parametrize("more", [10, 200], ids=["shorter", "longer"])
def test_a_backup_that_is_put_back(site, tmp_path, more, begin):
    """It goes on with other messages under the same numbers: none of them is taken for one that is there."""
    with KeepingContext() as context:
        publish(site.client, "t", range(50))
        sub = subscribed(context, site.broker, begin="old", reconnect_ivl=5, reconnect_ivl_max=20)
        assert received(sub, 50) == {"t": list(range(50))}
        backup = backed_up(site, tmp_path)
        publish(site.client, "t", range(50, 100))
        assert received(sub, 50) == {"t": list(range(50, 100))}
        endpoint = f"{site.native.subscriptions}?begin={begin}"
        sub.disconnect(sub.last_endpoint)
        restore(site, backup)
        publish(site.client, "t", range(1000, 1000 + more))
        publish(site.client, "other", range(5))
        sub.connect(endpoint)
        assert received(sub, more + 5) == {"t": list(range(1000, 1000 + more)), "other": list(range(5))}
        publish(site.client, "t", range(5))
        assert received(sub, 5) == {"t": list(range(5))}
        assert "missed" not in sub._links.state.counts


def test_one_that_stays_while_a_backup_is_put_back(site, tmp_path):
    with KeepingContext() as context:
        publish(site.client, "t", range(50))
        sub = subscribed(context, site.broker, reconnect_ivl=5, reconnect_ivl_max=20)
        assert received(sub, 50) == {"t": list(range(50))}
        backup = backed_up(site, tmp_path)
        publish(site.client, "t", range(50, 100))
        assert received(sub, 50) == {"t": list(range(50, 100))}
        restore(site, backup)
        publish(site.client, "t", range(1000, 1200))
        assert received(sub, 200) == {"t": list(range(1000, 1200))}


def test_an_epoch_that_the_subscriber_never_saw(site, tmp_path):
    """The backup was put back and went on, was stopped and went on, while the SUBs were away."""
    with KeepingContext() as context:
        publish(site.client, "t", range(50))
        first = subscribed(context, site.broker)
        assert received(first, 50) == {"t": list(range(50))}
        backup = backed_up(site, tmp_path)
        second = subscribed(context, site.broker)
        publish(site.client, "t", range(50, 100))
        assert received(first, 50) == {"t": list(range(50, 100))}
        assert received(second, 100) == {"t": list(range(100))}
        endpoint = first.last_endpoint
        for sub in (first, second):
            sub.disconnect(endpoint)
        restore(site, backup)
        publish(site.client, "t", range(1000, 1100))
        site.stop()
        site.start()
        publish(site.client, "t", range(1100, 1110))
        for sub in (first, second):
            sub.connect(endpoint)
        assert received(first, 110) == {"t": list(range(1000, 1110))}
        # The backup never had the one run that it was there in, so that it begins with that log anew.
        assert received(second, 160) == {"t": [*range(50), *range(1000, 1110)]}
        for sub in (first, second):
            sub.disconnect(endpoint)
        site.stop()
        site.start()
        publish(site.client, "t", [7])
        for sub in (first, second):
            sub.connect(endpoint)
            assert received(sub, 1) == {"t": [7]}


def test_the_last_epochs_are_kept(site):
    with KeepingContext() as context:
        sub = subscribed(context, site.broker, reconnect_ivl=5, reconnect_ivl_max=20)
        for turn in range(7):
            publish(site.client, "t", [turn])
            assert received(sub, 1) == {"t": [turn]}
            site.stop()
            site.start()
        [known] = sub._links.log_reader.positions._by_log.values()
        [epochs] = known.by_topic.values()
        assert [one.number for one in epochs] in ([4, 5, 6, 7], [5, 6, 7, 7])


def test_another_log_at_the_same_place(site, tmp_path):
    """`new` is what is published after the SUB was there first, whichever log keeps it."""
    with KeepingContext() as context:
        publish(site.client, "t", range(5))
        sub = subscribed(context, site.broker, begin="new", reconnect_ivl=5, reconnect_ivl_max=20)
        sub.wait_for_peers(1, 10)
        publish(site.client, "t", [5])
        assert received(sub, 1) == {"t": [5]}
        endpoint = sub.last_endpoint
        site.stop()
        assert eventually(lambda: not sub.peers())
        shutil.rmtree(site.folder)
        port = site.native
        site.native = NativeSettings(FREE, FREE, FREE)  # it is not seen by the SUB yet
        site.start()
        publish(site.client, "t", range(100, 110))
        site.stop()
        site.native = port
        site.start()
        publish(site.client, "t", range(110, 120))
        assert received(sub, 20) == {"t": list(range(100, 120))}
        assert sub.last_endpoint == endpoint


def test_old_messages_of_another_log_are_not_new(site, tmp_path):
    with KeepingContext() as context, running(tmp_path / "other") as other:
        with BrokerClient(other.endpoints["requests"]) as client:
            publish(client, "t", range(50))
        sub = subscribed(context, site.broker, begin="new", reconnect_ivl=5, reconnect_ivl_max=20)
        sub.wait_for_peers(1, 10)
        publish(site.client, "t", [5])
        assert received(sub, 1) == {"t": [5]}
        site.stop()
        assert eventually(lambda: not sub.peers())
        with BrokerClient(other.endpoints["requests"]) as client:
            publish(client, "t", range(50, 60))
        other.close()
        site.folder = tmp_path / "other"
        site.start()
        publish(site.client, "t", range(60, 70))
        assert received(sub, 20) == {"t": list(range(50, 70))}


# -- the same log twice --------------------------------------------------------------------------------------


def test_one_socket_connects_once_to_a_broker(context, site):
    publish(site.client, "t", range(3))
    sub = subscribed(context, site.broker)
    assert received(sub, 3) == {"t": [0, 1, 2]}
    for query in ("begin=old", "begin=new", "policy=prefer&begin=old"):
        with pytest.raises(AddressError, match="is connected already"):
            sub.connect(f"{site.native.subscriptions}?{query}")
    sub.disconnect(sub.last_endpoint)
    sub.connect(f"{site.native.subscriptions}?begin=new")


def test_another_way_to_the_same_broker_stands_by(context, site, caplog):
    publish(site.client, "t", range(3))
    sub = subscribed(context, site.broker, reconnect_ivl=5, reconnect_ivl_max=20)
    assert received(sub, 3) == {"t": [0, 1, 2]}
    first = sub.last_endpoint
    sub.connect(f"{site.native.subscriptions.replace('127.0.0.1', 'localhost')}?begin=old")
    assert eventually(lambda: sub._links.state.counts.get("handshake:duplicate_log", 0) > 1)
    publish(site.client, "t", range(3, 6))
    assert received(sub, 3) == {"t": [3, 4, 5]}
    assert f"from {first} already" in caplog.text
    sub.disconnect(first)
    publish(site.client, "t", range(6, 9))
    assert received(sub, 3) == {"t": [6, 7, 8]}
    assert "missed" not in sub._links.state.counts


def test_a_copy_while_the_original_runs(site, tmp_path):
    with KeepingContext() as context:
        publish(site.client, "t", range(3))
        backup = backed_up(site, tmp_path)
        with running(backup) as copy, BrokerClient(copy.endpoints["requests"]) as client:
            publish(client, "t", range(100, 103))
            publish(site.client, "t", range(3, 6))
            sub = subscribed(context, site.broker)
            assert received(sub, 6) == {"t": list(range(6))}
            sub.connect(f"{copy.endpoints['subscriptions']}?begin=old")
            assert eventually(lambda: sub._links.state.counts.get("handshake:duplicate_log"))
            sub.disconnect(f"{site.native.subscriptions}?begin=old")
            # The copy never had a run of the original since then: it is read from its beginning.
            assert received(sub, 6) == {"t": [0, 1, 2, 100, 101, 102]}


# -- what a SUB cannot take ----------------------------------------------------------------------------------


def test_each_skipped_message_is_logged_once(context, site, caplog):
    for number in (0, 2, 5):
        site.client.publish("first", bytes(1 << 20))
        publish(site.client, "second", [number])
        site.client.publish("second", bytes(1 << 20))
    sub = subscribed(context, site.broker, maxmsgsize=100_000)
    assert received(sub, 3) == {"second": [0, 2, 5]}
    assert eventually(lambda: sub.poll(0) is not None and sub._links.state.counts.get("missed") == 6)
    assert "a message of topic 'first' has 1048576 bytes, more than maxmsgsize" in caplog.text
    endpoint = sub.last_endpoint
    for _ in range(3):
        sub.disconnect(endpoint)
        sub.connect(endpoint)
        sub.wait_for_peers(1, 10)
        assert not sub.poll(200)
    assert sub._links.state.counts["missed"] == 6
    publish(site.client, "first", [7])
    publish(site.client, "second", [8])
    assert received(sub, 2) == {"first": [7], "second": [8]}
    assert sub._links.state.counts["missed"] == 6


def test_prefixes_that_are_not_utf8(context, site):
    sub = context.socket(transfer.SUB, rcvtimeo=10_000)
    endpoint = f"{site.native.subscriptions}?begin=old"
    sub.subscribe(b"\xff")
    with pytest.raises(UsageError, match="topics of a log are UTF-8 of at most 255 bytes"):
        sub.connect(endpoint)
    sub.unsubscribe(b"\xff")
    sub.connect(endpoint)
    with pytest.raises(UsageError, match="UTF-8"):
        sub.subscribe(b"\xc3")
    sub.subscribe("é")
    publish(site.client, "été", [1])
    assert received(sub, 1) == {"été": [1]}


# -- epochs --------------------------------------------------------------------------------------------------


def test_epochs_against_a_log(tmp_path):
    clock = SimpleNamespace(now=10**18)
    ends = {}
    for turn in range(5):
        clock.now += (-1) ** turn * 10**12  # it goes back as well
        with Log(tmp_path / "log", clock=lambda: clock.now) as log:
            epochs = LogEpochs(log)
            for epoch, end in ends.items():
                for number in (0, 1, end - 1, end, end + 1, end + 100):
                    assert epochs.valid_number("t", TopicPosition(number, epoch)) == min(number, end)
            assert epochs.valid_number("t", TopicPosition(5, 12345)) is None
            assert epochs.valid_number("t", TopicPosition(1 << 60, epochs.log.epoch)) == 1 << 60
            for _ in range(turn * 3):
                log.append("t", b"x")
            log.commit()
            ends[epochs.log.epoch] = log.range("t")[1]
    assert len(ends) == 5


def test_a_start_without_subscriptions_begins_an_epoch_too(tmp_path):
    for _ in range(3):
        with running(tmp_path / "data", native=NativeSettings(FREE, FREE, "")):
            pass
    with Log(tmp_path / "data" / "log") as log:
        assert len(log.get(b"broker/epochs")) == 3 * 16


def test_no_more_positions_are_sent_than_a_broker_accepts(monkeypatch):
    monkeypatch.setattr(topic_positions, "_MAX_SENT_BYTES", 100)
    known, log = topic_positions.TopicPositions(), topic_positions.LogId("log", 1)
    peer = SimpleNamespace(log=log)
    known.connected(log)
    for number in range(100):
        known.reset(peer, TopicPosition(number, 1), b"%010d" % number)
    sent = [topic_positions.decode_position(data) for data in known.control_frames("log")]
    assert sorted(topic for _, topic in sent) == [b"%010d" % number for number in range(90, 100)]
