"""Lines of the log that a stranger can cause."""

from __future__ import annotations

import logging
import socket

import transfer
from transfer.throttled_log import ThrottledLog
from transfer.transports.testing.ends import until


def test_a_few_of_each_kind_and_how_many_were_left_out(caplog):
    caplog.set_level("INFO")
    now = [0.0]
    throttled = ThrottledLog(logging.getLogger("transfer.test"), lambda: now[0])
    for number in range(1000):
        throttled.log(logging.INFO, "plain", "%d is not TLS", number)
    throttled.log(logging.WARNING, "late", "one is late")
    throttled.log(logging.DEBUG, "late", "that is not wanted")
    assert caplog.messages == [*(f"{number} is not TLS" for number in range(10)), "one is late"]
    caplog.clear()
    now[0] = 60.0
    throttled.log(logging.INFO, "plain", "%d is not TLS", 1000)
    throttled.log(logging.INFO, "plain", "%d is not TLS", 1001)
    throttled.log(logging.WARNING, "late", "one is late")
    assert caplog.messages == [
        "1000 is not TLS (990 more like it were left out)", "1001 is not TLS", "one is late"
    ]  # fmt: skip


def test_other_protocols_at_a_socket(caplog):
    caplog.set_level("INFO", "transfer")
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
        place = ("127.0.0.1", int(pull.last_endpoint.rpartition(":")[2]))
        for _ in range(50):
            with socket.create_connection(place, 10) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 4)
                until(lambda stranger=stranger: is_over(stranger), "the end")
        lines = [line for line in caplog.records if "was refused" in line.getMessage()]
    assert [line.levelname for line in lines] == ["WARNING", *10 * ["INFO"]]


def is_over(connection):
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True
