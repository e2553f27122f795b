"""PyBroker's two programs, as its document starts them: the consumer waits, then the producer sends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.in_process_broker import running
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.transports.testing.ends import until

pytestmark = pytest.mark.timeout(60)

PROGRAMS = Path(__file__).parents[2] / "examples" / "pybroker"


def test_producer_and_consumer(tmp_path):
    offset = tmp_path / "offset.txt"
    with running(tmp_path / "data") as broker:
        port = str(broker.ports["pybroker"])

        def produce(text):
            program = [sys.executable, PROGRAMS / "producer.py", "logs", "127.0.0.1", port]
            subprocess.run(program, input=text, text=True, check=True, timeout=30)

        def consume(text, end):
            """The consumer prints the text; then it is interrupted."""
            program = [sys.executable, PROGRAMS / "consumer.py", "logs", offset, "127.0.0.1", port]
            with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as consumer:
                try:
                    produce(text)
                    assert consumer.stdout.read(len(text)) == text
                    until(lambda: offset.exists() and offset.read_text() == str(end), "the offset")
                    consumer.send_signal(signal.SIGINT)
                    assert consumer.stdout.read() == ""
                    assert consumer.wait(30) == 130
                finally:
                    consumer.kill()

        consume("one\ntwo\n", 8)
        consume("three\n", 14)  # it goes on where it was


def consumer(offset, port, **options):
    program = [sys.executable, PROGRAMS / "consumer.py", "logs", offset, "127.0.0.1", str(port)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_consumer_goes_on_when_the_broker_is_there_again(tmp_path):
    data, offset = tmp_path / "data", tmp_path / "offset.txt"
    with running(data) as broker:
        port = broker.ports["pybroker"]
        with PyBrokerClient("127.0.0.1", port) as client:
            client.publish("logs", b"before\n")
        program = consumer(offset, port)
        with program:
            try:
                assert program.stdout.readline() == "before\n"
                broker.close()
                assert "it is tried again" in program.stderr.readline()
                with running(data, pybroker=port), PyBrokerClient("127.0.0.1", port) as client:
                    client.publish("logs", b"behind\n")
                    assert program.stdout.readline() == "behind\n"
            finally:
                program.kill()


def test_a_damaged_offset_is_told(tmp_path):
    offset = tmp_path / "offset.txt"
    offset.write_text("")
    with consumer(offset, 1) as program:
        _, errors = program.communicate(timeout=30)
    assert program.returncode == 1 and "holds no offset" in errors and "Traceback" not in errors
