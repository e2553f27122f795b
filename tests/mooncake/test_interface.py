"""Names, settings, options, endpoints: everything that is not data."""

from __future__ import annotations

import inspect
import threading

import pytest

import transfer
from transfer import ZmqConfig, ZmqInterface, ZmqSocketOption, ZmqSocketType
from transfer.mooncake.dispatch import choose
from transfer.mooncake.message import Form, IncomingMessage
from transfer.transports.errors import (
    AddressError,
    AddressInUse,
    NotSupported,
    OptionError,
    UsageError,
)

from .conftest import Inbox

pytestmark = pytest.mark.timeout(30)

#: every call of the surface
CALLS = """
initialize shutdown term create_socket close_socket bind connect unbind disconnect start_server
set_socket_option get_socket_option set_routing_id get_routing_id is_bound is_connected
get_connected_endpoints get_bound_endpoint get_socket_type set_polling_mode
request request_async reply publish publish_async push push_async send send_async subscribe unsubscribe
send_tensor send_tensor_async reply_tensor send_multipart send_json send_string send_pyobj
set_receive_callback set_subscribe_callback set_pull_callback set_tensor_receive_callback
set_multipart_receive_callback set_json_receive_callback set_pyobj_receive_callback
set_string_receive_callback set_batch_receive_callback set_codec recv recv_tensor recv_multipart recv_json
recv_string recv_pyobj socket
""".split()  # noqa: SIM905 - a list of fifty strings is harder to read
OF_THE_INTERFACE = {"initialize", "shutdown", "term", "create_socket", "close_socket", "socket"}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_there(name):
    assert callable(getattr(ZmqInterface, name))


@pytest.mark.parametrize("name", sorted(set(CALLS) - OF_THE_INTERFACE))
def test_the_object_has_the_same_calls(name):
    of_interface = list(inspect.signature(getattr(ZmqInterface, name)).parameters.values())
    of_socket = list(inspect.signature(getattr(transfer.mooncake.ZmqSocket, name)).parameters.values())
    assert [p.name for p in of_interface[:2]] == ["self", "socket_id"]
    assert [(p.name, p.default) for p in of_interface[2:]] == [(p.name, p.default) for p in of_socket[1:]]


def test_settings():
    config = ZmqConfig()
    assert vars(config) == {
        "thread_count": 8,
        "timeout_seconds": 30,
        "pool_size": 10,
        "enable_rdma": False,
        "high_water_mark": 1000,
        "rcv_timeout_ms": 5000,
        "snd_timeout_ms": 5000,
        "linger_ms": 1000,
        "reconnect_interval_ms": 100,
        "rcv_buffer_size": 65536,
        "snd_buffer_size": 65536,
    }
    config.thread_count = 2
    assert ZmqInterface().initialize(config)
    assert ZmqInterface().initialize({"timeout_seconds": 1})
    assert ZmqInterface().initialize({})
    assert ZmqInterface().initialize()
    with pytest.raises(OptionError, match="no_such"):
        ZmqInterface().initialize({"no_such": 1})


def test_numbers():
    kinds = ["REQ", "REP", "PUB", "SUB", "PUSH", "PULL", "PAIR"]
    assert [ZmqSocketType[name] for name in kinds] == list(range(7))
    assert {option.name for option in ZmqSocketOption} == {
        "RCVTIMEO", "SNDTIMEO", "SNDHWM", "RCVHWM", "LINGER", "RECONNECT_IVL", "RCVBUF", "SNDBUF",
        "ROUTING_ID",
    }  # fmt: skip


def test_socket_types(zi):
    for kind in ZmqSocketType:
        for given in (kind, int(kind), kind.name, kind.name.lower()):
            assert zi.get_socket_type(zi.create_socket(given)) is kind
    for wrong in ("ROUTER", 7, -1):
        with pytest.raises(OptionError):
            zi.create_socket(wrong)


def test_ids(zi):
    first, second = zi.create_socket("PUSH"), zi.create_socket("PUSH")
    assert first != second
    assert zi.close_socket(first)
    assert not zi.close_socket(first)
    with pytest.raises(UsageError, match="no socket"):
        zi.push(first, b"x")
    assert not zi.is_bound(second)


def test_options(make):
    zi = make({"high_water_mark": 7, "linger_ms": 8, "rcv_timeout_ms": 9, "snd_timeout_ms": 10})
    sock = zi.create_socket("PULL")
    expected = {"SNDHWM": 7, "RCVHWM": 7, "LINGER": 8, "RCVTIMEO": 9, "SNDTIMEO": 10, "RECONNECT_IVL": 100}
    for name, value in expected.items():
        option = ZmqSocketOption[name]
        assert zi.get_socket_option(sock, option) == zi.get_socket_option(sock, name) == value
        assert zi.set_socket_option(sock, option, value + 1)
        assert zi.get_socket_option(sock, int(option)) == value + 1
    assert zi.set_routing_id(sock, "me")
    assert zi.get_routing_id(sock) == zi.get_socket_option(sock, "ROUTING_ID") == "me"
    for wrong in ("NO_SUCH", 99):
        with pytest.raises(OptionError):
            zi.set_socket_option(sock, wrong, 1)
    with pytest.raises(OptionError):
        zi.set_socket_option(sock, "LINGER", "long")


def test_buffer_sizes_are_set_when_they_are_chosen(make):
    zi = make({"rcv_buffer_size": 100_000})
    assert zi.get_socket_option(zi.create_socket("PULL"), "RCVBUF") == 100_000


def test_endpoints(zi):
    pull, push = zi.create_socket("PULL"), zi.create_socket("PUSH")
    assert zi.get_bound_endpoint(pull) == "" and zi.get_connected_endpoints(push) == []
    assert not zi.start_server(pull)
    assert zi.bind(pull, "127.0.0.1:0")
    bound = zi.get_bound_endpoint(pull)
    assert zi.is_bound(pull) and bound.startswith("tcp://127.0.0.1:") and not bound.endswith(":0")
    plain = bound.removeprefix("tcp://")
    assert zi.connect(push, plain)
    assert zi.is_connected(push) and zi.get_connected_endpoints(push) == [plain]
    assert zi.disconnect(push, plain)
    assert not zi.is_connected(push)
    assert zi.unbind(pull, bound)
    assert not zi.is_bound(pull)
    with pytest.raises(AddressError):
        zi.disconnect(push, plain)


def test_bad_endpoints(zi):
    pull, other = zi.create_socket("PULL"), zi.create_socket("PULL")
    for endpoint in ("", "nothing", "tcp://127.0.0.1:port"):
        with pytest.raises(AddressError):
            zi.bind(pull, endpoint)
    zi.bind(pull, "127.0.0.1:0")
    with pytest.raises(AddressInUse):
        zi.bind(other, zi.get_bound_endpoint(pull))


def test_calls_of_another_type(zi):
    push, sub = zi.create_socket("PUSH"), zi.create_socket("SUB")
    for call in (
        lambda: zi.request(push, b""),
        lambda: zi.reply(push, b""),
        lambda: zi.publish(push, "", b""),
        lambda: zi.subscribe(push, ""),
        lambda: zi.set_receive_callback(push, print),
        lambda: zi.push(sub, b""),
        lambda: zi.send(sub, b""),
    ):
        with pytest.raises(NotSupported):
            call()
    with pytest.raises(TypeError):
        zi.set_receive_callback(sub, "no function")


def test_shutdown_ends_everything_and_can_begin_again():
    zi = ZmqInterface()
    zi.initialize()
    pull = zi.create_socket("PULL")
    zi.bind(pull, "127.0.0.1:0")
    zi.set_pull_callback(pull, Inbox())
    zi.shutdown()
    zi.shutdown()
    with pytest.raises(UsageError):
        zi.bind(pull, "127.0.0.1:0")
    assert not [t for t in threading.enumerate() if t.name.startswith("transfer-")]
    zi.bind(zi.create_socket("PULL"), "127.0.0.1:0")
    zi.term()


def test_closing_a_socket_in_its_callback(zi, link):
    push, pull = link("PUSH", "PULL")
    closed = threading.Event()

    def close(message):
        zi.close_socket(pull)
        closed.set()

    zi.set_pull_callback(pull, close)
    zi.push(push, b"x")
    assert closed.wait(5)


def test_callbacks_run_one_at_a_time_elsewhere(zi, link):
    push, pull = link("PUSH", "PULL")
    running = threading.Semaphore(1)
    inbox = Inbox()

    def work(message):
        alone = running.acquire(blocking=False)
        inbox((alone, threading.current_thread() is not main))
        running.release()

    main = threading.current_thread()
    zi.set_pull_callback(pull, work)
    for _ in range(50):
        zi.push(push, b"x")
    assert [inbox.get() for _ in range(50)] == [(True, True)] * 50


def test_callbacks_come_and_go(zi, link):
    push, pull = link("PUSH", "PULL")
    first, second = Inbox(), Inbox()
    zi.set_pull_callback(pull, first)
    zi.push(push, b"1")
    assert first.get()["data"] == b"1"
    zi.set_polling_mode(pull, True)
    zi.push(push, b"2")
    assert zi.recv(pull)["data"] == b"2"
    zi.set_pull_callback(pull, second)
    zi.set_polling_mode(pull, False)
    zi.push(push, b"3")
    assert second.get()["data"] == b"3"
    zi.set_pull_callback(pull, None)
    zi.push(push, b"4")
    zi.set_string_receive_callback(pull, second)
    assert second.get() == {"string": "4", "topic": ""}
    assert first.empty()


def test_which_callback_gets_a_message():
    def message(*parts, **how):
        return IncomingMessage("", "", parts, **how)

    both = {Form.DATA: print, Form.JSON: len}
    assert choose(message(b"{}"), both) == (len, Form.JSON)
    assert choose(message(b"{"), both) == (print, Form.DATA)
    assert choose(message(b"{"), {Form.JSON: len}) == (len, Form.JSON)
    assert choose(message(b"a", b"b"), {**both, Form.MULTIPART: max}) == (max, Form.MULTIPART)
    assert choose(message(b"a"), {Form.MULTIPART: max}) == (max, Form.MULTIPART)
    assert choose(message(is_tensor=True), both) == (print, Form.DATA)
    assert choose(message(is_tensor=True), {**both, Form.TENSOR: max}) == (max, Form.TENSOR)
    assert choose(message(is_tensor=True), {Form.JSON: len}) is None
    assert choose(message(b"\xff"), {Form.STRING: len, Form.DATA: print}) == (print, Form.DATA)


def test_only_what_can_be_an_object_goes_to_its_callback(monkeypatch):
    def chosen(data):
        return choose(IncomingMessage("", "", (data,)), {Form.PYOBJ: len, Form.DATA: print})

    monkeypatch.delenv("MOONCAKE_ALLOW_PICKLE", raising=False)
    assert chosen(b"\xc1TO\x01\x01") == (len, Form.PYOBJ)
    assert chosen(b"\x80\x04.") == (print, Form.DATA)  # a pickle
    monkeypatch.setenv("MOONCAKE_ALLOW_PICKLE", "1")
    assert chosen(b"\x80\x04.") == (len, Form.PYOBJ)
    assert chosen(b"\x80\x04") == chosen(b"text") == (print, Form.DATA)


def test_a_tensor_nobody_wants_is_counted(zi, link, caplog):
    import numpy as np

    push, pull = link("PUSH", "PULL")
    inbox = Inbox()
    zi.set_string_receive_callback(pull, inbox)
    zi.send_tensor(push, np.zeros(2))
    zi.push(push, b"next")
    assert inbox.get()["string"] == "next"
    assert zi._of(pull).callback_errors == 1
    assert "no callback" in caplog.text
