"""The table of limits in docs/security.md: each row's value is the code's, and each row's test is there."""

from __future__ import annotations

import inspect
import re
import socket
import ssl
from http.client import HTTPResponse
from pathlib import Path

import pytest
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestHandler

from tests.broker.asking import ask
from tests.broker.running import running
from tests.broker.test_besieged import MOST_OF_A_HANDSHAKE
from tests.broker.test_http_heads import MOST_OF_A_HEAD
from tests.security.conftest import TOKEN
from transfer.broker.config.settings import Settings
from transfer.broker.core.registry import RegistryLimits as RegistryLimits
from transfer.broker.delivery.announced import AnnouncedLimits
from transfer.broker.delivery.streaming_publish import MOST_GATHERED
from transfer.broker.fronts import (
    abtp_pub,
    abtp_relay,
    abtp_subscription_limits,
    abtp_unrouted as abtp_awaiting,
    native_backlog,
    native_catch_up as own_catch_up,
    native_consumers as own_consumers,
    native_downloads as own_offers,
    native_queue as own_queue,
)
from transfer.broker.fronts.abtp import AbtpSettings
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.fronts.pybroker import PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueSettings
from transfer.broker.fronts.ttp import TtpSettings
from transfer.broker.http import request_head_limit as heads, server as http
from transfer.broker.http.app import MAX_BODY
from transfer.broker.protocols import abtp, abtp_words, zmtp
from transfer.cli import app, health
from transfer.cli.options import Reached
from transfer.http import client as http_client
from transfer.metrics import http_server as scraping
from transfer.patterns import pub_sub
from transfer.sockets.connections import control
from transfer.sockets.defaults import TRANSFER
from transfer.sockets.socket import SocketMethods
from transfer.spool.format import protocol
from transfer.spool.server import group, reader, row_requests
from transfer.transports import descriptors
from transfer.transports.connect import pending
from transfer.transports.core.pure import receiving, tls
from transfer.transports.discovery import membership
from transfer.transports.handshake import hello, upgrade
from transfer.transports.handshake.first_record import LARGEST_HELLO
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security
from transfer.transports.shm import mappings, unix_listener as door

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "security.md").read_text()


def rows():
    """(port, limit, value, test) of each row."""
    found, port = [], ""
    for line in _PAGE.partition("## Limits")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0] != "port" and not cells[1].startswith("--"):
            port = cells[0] or port
            found.append((port, cells[1], cells[2], cells[3].strip("`")))
    return found


def size(number):
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if number >= _UNITS[unit]), "")
    return f"{-(-number // _UNITS[unit]):,} {unit}" if unit else f"{number:,}"


def number(value):
    return f"{value:,}"


def seconds(value):
    return f"{value:g} s"


def _default(function, name):
    return inspect.signature(function).parameters[name].default


def _of_aiohttp(name):
    """Its default, which nothing here changes, for a request line and for a header."""
    defaults = inspect.signature(RequestHandler).parameters
    assert defaults["max_line_size"].default == defaults["max_field_size"].default
    return defaults[name].default


_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TTP, _ABTP, _REGISTRY, _ANNOUNCED = TtpSettings(), AbtpSettings(), RegistryLimits(), AnnouncedLimits()

#: the code's, by port and the first words of the limit
VALUES = {
    ("all TCP ports", "connections"): f"{number(pending.MOST)}, or a quarter of the descriptors",
    ("all TCP ports", "descriptors"): f"{number(descriptors.RESERVE)}, or an eighth",
    ("names that", "addresses"): f"{number(membership.MOST)}, or half of the descriptors",
    ("each port", "connections that"): number(Security().unfinished),
    ("each port", "connections"): number(Security().connections),
    ("each port", "memory"): size(MOST_OF_A_HANDSHAKE),
    ("each port", "bytes of a TLS handshake"): size(tls._MAX_HANDSHAKE),
    ("each port", "bytes of a ClientHello"): size(LARGEST_HELLO),
    ("each port", "bytes of a peer's certificates"): "24 KiB",  # CERTIFICATES in native/tls.pxd
    ("each port", "bytes of TLS records"): size(tls._MAX_BARREN),
    ("each port", "bytes inside"): size(tls._MAX_STRANGE),
    ("ports of a broker that", "connections"): number(Security().unfinished),
    ("ports of a broker", "time"): seconds(Settings().handshake),
    ("own sockets", "bytes of a hello"): size(hello.MAX_HELLO),
    ("own sockets", "bytes of a step"): size(upgrade.MAX_STEP),
    ("own sockets", "bytes of a message"): size(SocketMethods.maxmsgsize.default),
    ("own sockets", "subscriptions"): f"{number(pub_sub.MAX_SUBSCRIPTIONS)}; {size(pub_sub.MAX_SUBSCRIBED)}",
    ("own sockets", "control frames"): f"{control.TURN_FRAMES}; {receiving.MOST_UNWANTED}",
    ("own sockets", "time"): seconds(TRANSFER.handshake_ivl / 1000),
    ("one host", "connections"): number(door._MOST_WAITING),
    ("one host", "shared"): f"{number(mappings.MOST_SEGMENTS)}; {number(mappings.MOST_BLOCKS)}",
    ("own front", "bytes of programs"): size(native_backlog._MOST_WAITING),
    ("own front", "bytes of a message in"): size(NativeSettings().largest_in_pieces),
    ("own front", "bytes of a message"): size(NativeSettings().largest),
    ("own front", "time"): seconds(NativeSettings().stalled),
    (
        "own front",
        "bytes that wait for one program",
    ): f"{size(own_consumers.MOST_WAITING)}; {size(own_offers.MOST_ASKED)}",
    ("own front", "messages"): f"{number(own_queue._WINDOW)}; {size(own_queue.MOST_WAITING)}",
    ("own front", "bytes that wait for one SUB"): size(TRANSFER.send_high_water_bytes),
    ("own front", "the same"): size(own_catch_up.MAX_QUEUED_BYTES),
    ("own front", "positions"): "; ".join(
        (
            number(own_catch_up.MAX_POSITIONS),
            number(own_catch_up.MAX_REQUESTS),
            size(own_catch_up.MAX_REQUEST_BYTES),
        )
    ),
    ("TTP", "bytes of a frame's metadata"): size(_TTP.most_meta),
    ("TTP", "bytes of a frame's data"): size(_TTP.most_data),
    ("TTP", "streams"): f"{number(_TTP.most_streams)}; {size(_TTP.most_gathered_together)}",
    ("TTP", "subscriptions"): "; ".join(
        map(number, (_TTP.most_subscriptions, _TTP.most_shapes, _TTP.most_shapes_together))
    ),
    ("TTP", "silence"): seconds(_TTP.idle),
    ("PyBroker", "bytes of a payload"): size(PyBrokerSettings().largest),
    ("PyBroker", "bytes of answers"): size(PyBrokerSettings().answers),
    ("PyBroker", "time"): seconds(PyBrokerSettings().stalled),
    ("rqueue", "bytes of a content"): size(RqueueSettings().largest),
    ("rqueue", "bytes that wait"): size(RqueueSettings().limit),
    ("rqueue", "subscriptions"): number(RqueueSettings().subscriptions),
    ("rqueue", "time"): seconds(RqueueSettings().stalled),
    ("abtp", "bytes of a payload"): size(_ABTP.largest),
    ("abtp", "bytes of READY"): f"{size(zmtp.LONGEST_READY)}; {number(zmtp.LONGEST_IDENTITY)}",
    ("abtp", "messages"): f"{number(_ABTP.unkept)}; {size(_ABTP.unkept_bytes)}",
    ("abtp", "bytes of a message unpacked"): size(_ABTP.largest),
    ("abtp", "bytes of a control"): f"{size(abtp_words.MAX_CONTROL)}; {number(abtp.MAX_SUBSCRIPTIONS)}",
    ("abtp", "bytes of an envelope"): size(abtp_words.MAX_CONTROL),
    ("abtp", "bytes that are published"): size(abtp_relay._SLOW_SUBSCRIBER_BYTES),
    ("abtp", "messages and bytes"): f"{number(_ABTP.peer_queue)}; {size(_ABTP.peer_bytes)}",
    ("abtp", "messages that wait for a consumer"): "; ".join(
        (number(_ABTP.awaiting), number(_ABTP.awaiting_of_topic), size(abtp_awaiting._MOST_BYTES))
    ),
    ("abtp", "subscriptions of a SUB"): "; ".join(
        (
            number(abtp_subscription_limits.MAX_SUBSCRIPTIONS),
            size(abtp_subscription_limits.MAX_BYTES),
            size(abtp_subscription_limits.MAX_TOTAL_BYTES),
        )
    ),
    ("abtp", "changes"): "; ".join(
        (number(abtp_subscription_limits.MAX_CHANGES), number(abtp_subscription_limits.MAX_BURST))
    ),
    ("abtp", "prefixes"): number(abtp_pub.MOST_PREFIXES),
    ("HTTP of a broker", "connections without"): number(Security().unfinished),
    ("HTTP of a broker", "bytes of a body"): size(MAX_BODY),
    ("HTTP of a broker", "bytes of a request line"): number(_of_aiohttp("max_line_size")),
    ("HTTP of a broker", "bytes of a request's head"): f"{size(heads.MOST)}; {number(heads.MOST_HEADERS)}",
    ("HTTP of a broker", "memory"): size(MOST_OF_A_HEAD),
    ("HTTP of a broker", "bytes of an unfinished head"): size(heads.AT_ONCE),
    ("HTTP of a broker", "requests that wait"): number(MAX_MSG_QUEUE_SIZE),
    ("HTTP of a broker", "time between"): seconds(http.KEEP_ALIVE),
    ("HTTP of a broker", "time until"): seconds(http.KEEP_ALIVE),
    ("HTTP of metrics", "connections"): f"{number(scraping._MOST)}; {number(scraping._MOST)}",
    ("HTTP of metrics", "bytes"): size(scraping.MOST_HEAD),
    ("HTTP of metrics", "time"): seconds(scraping._PATIENCE),
    ("answers", "bytes"): f"{size(http_client.MOST)}; {size(health._MOST)}",
    ("answers", "time"): f"{seconds(Reached().timeout)}; {seconds(_default(app.health, 'timeout'))}",
    ("spool", "bytes of a request"): size(protocol.MAX_REQUEST),
    ("spool", "bytes of an answer"): size(protocol.MAX_ANSWER),
    ("spool", "bytes of answers"): size(reader._MOST_UNSENT),
    ("spool", "shards"): number(group.MAX_SHARDS),
    ("spool", "fetches"): number(row_requests._MAX_WAITING),
    ("registry", "names"): "; ".join(
        map(number, (_REGISTRY.names, _REGISTRY.members, _REGISTRY.each, _REGISTRY.all))
    ),
    ("registry", "watches"): number(_REGISTRY.watchers),
    ("all fronts", "bytes"): f"{size(_ANNOUNCED.per_connection)}; {size(_ANNOUNCED.total)}",
    ("all fronts", "bytes of large payloads"): size(MOST_GATHERED),
    ("all fronts", "topics"): number(Settings().most_topics),
    ("all fronts", "groups"): number(Settings().most_groups),
}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1]}"[:70])
def test_each_row_s_test_is_there(row):
    file, _, name = row[3].partition("::")
    assert re.search(rf"^def {name}\(", (_ROOT / "tests" / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("place", VALUES, ids=": ".join)
def test_the_table_is_what_the_code_says(place):
    port, limit = place
    values = [row[2] for row in rows() if row[0].startswith(port) and row[1].startswith(limit)]
    assert VALUES[place] in values


def test_each_row_is_compared():
    compared = [(port, limit) for port, limit in VALUES]
    for port, limit, *_ in rows():
        assert [1 for ours, begins in compared if port.startswith(ours) and limit.startswith(begins)], limit


# -- limits that no other test reaches ------------------------------------------------------------


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(10)
    yield ends
    for end in ends:
        end.close()


def test_bytes_of_a_peer_that_does_not_say_who_it_is(pair, paper, core):
    ours, theirs = pair
    ours.setblocking(False)
    channel = Credentials(paper.security(clients="token", token=TOKEN), core).channel(ours.fileno())
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=paper.authority.path)
    peer = context.wrap_bio(came, goes, server_hostname="127.0.0.1")
    done = False
    while not done:
        try:
            peer.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        if data := goes.read():
            theirs.sendall(data)
        channel.handshake()
        theirs.setblocking(False)
        if not done:
            came.write(theirs.recv(1 << 16))
        theirs.settimeout(10)
    taken = 0
    with pytest.raises(OSError, match="unauthenticated peer"):
        while taken < 1 << 20:
            peer.write(bytes(16_000))
            theirs.sendall(goes.read())
            taken += len(channel.recv(1 << 16))
    assert taken < (256 + 64) << 10, "and what was read with the last of them"


def test_a_connection_that_asks_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "KEEP_ALIVE", 0.3)
    with running(tmp_path, http=0, own=None, ttp=None, pybroker=None, rqueue=None) as broker:
        with socket.create_connection(("127.0.0.1", broker.ports["http"]), 20) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = HTTPResponse(connection)
            answer.begin()
            answer.read()
            assert not answer.will_close
            assert connection.recv(1) == b"", "it is ended"


def test_a_header_without_end(tmp_path):
    with running(tmp_path, http=0, own=None, ttp=None, pybroker=None, rqueue=None) as broker:
        port = broker.ports["http"]
        assert ask(port, "/livez", X_Long="x" * 8000)[0] == 200
        assert ask(port, "/livez", X_Long="x" * 9000)[0] == 400
        assert ask(port, "/livez?" + "x" * 9000)[0] == 400
