"""A broker whose log is damaged in one topic serves the others, and says what is damaged."""

from __future__ import annotations

from tests.broker.in_process_broker import running
from transfer.broker.clients.native import BrokerClient
from transfer.broker.status import describe_overview
from transfer.broker.storage.folder_check import check
from transfer.broker.storage.folder_parts import LOG
from transfer.log.record import RecordKind, scan
from transfer.log.segment_files import BLOBS, SUFFIX


def test_a_damaged_message_of_one_topic_keeps_no_other_from_being_delivered(tmp_path, caplog):
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        for number in range(10):
            client.publish("whole", b"whole %d" % number)
            client.publish("damaged", b"damaged %d" % number * 100)
    (path,) = (tmp_path / LOG).glob(f"*{SUFFIX}")
    records = list(scan(memoryview(path.read_bytes()), 0))
    one = next(one for one in records if one.kind == RecordKind.MESSAGE and b"damaged 4" in bytes(one.body))
    with path.open("r+b") as file:
        file.seek(one.position)  # the head too
        file.write(bytes(200))
    report = check(tmp_path)
    assert not report.whole and any("'topic/damaged' are lost" in text for text in report.parts[0].problems)
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert any("'topic/damaged' are lost" in text for text in describe_overview(broker)["log_damage"])
        consumer = client.consume("whole", "g", begin="old")
        assert [bytes(consumer.recv().data) for _ in range(10)] == [b"whole %d" % at for at in range(10)]
        consumer = client.consume("damaged", "g", begin="old")
        found = [bytes(consumer.recv().data)[:9] for _ in range(9)]
        assert found == [b"damaged %d" % at for at in range(10) if at != 4]
    caplog.clear()  # its records keep the errors, and those the log's memory


def test_a_payload_that_is_found_to_be_damaged_when_it_is_read_is_in_the_overview(tmp_path, caplog):
    """A start does not read large payloads."""
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        for number in range(3):
            client.publish("orders", bytes([65 + number]) * 100_000)
    (path,) = (tmp_path / LOG).glob(f"*{BLOBS}")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"B" * 1000) + 500)
        file.write(b"bbb")
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert describe_overview(broker)["log_damage"] == []
        consumer = client.consume("orders", "g", begin="old")
        assert [bytes(consumer.recv().data)[:1] for _ in range(2)] == [b"A", b"C"]
        [text] = describe_overview(broker)["log_damage"]
        assert text.startswith("topic 'orders', message 1: ") and "is damaged" in text
    caplog.clear()
