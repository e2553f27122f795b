"""What programs for Mooncake's communicator do, pattern by pattern."""

from __future__ import annotations

import asyncio
import pickle
import threading
from queue import Queue

import numpy as np
import pytest
import torch

from tests.ports import free_port
from transfer import ZmqConfig, ZmqInterface, ZmqSocketOption, ZmqSocketType
from transfer.transports.errors import Again, NotATensor, PickleRefused, ProtocolError, StateError, UsageError

from .conftest import PATIENCE, Inbox, until_received

pytestmark = pytest.mark.timeout(30)

ENDPOINTS = ["127.0.0.1:{}", "tcp://127.0.0.1:{}", "rdma://127.0.0.1:{}"]
UCX = pytest.param("ucx://127.0.0.1:{}", marks=pytest.mark.keeps(reason="UCX keeps its descriptors"))
ENDPOINTS.append(UCX)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_requests_are_answered_in_callbacks(zi, endpoint):
    endpoint = endpoint.format(free_port())
    rep, req = zi.create_socket(ZmqSocketType.REP), zi.create_socket(ZmqSocketType.REQ)
    assert zi.bind(rep, endpoint)
    assert zi.start_server(rep)
    seen = Inbox()

    def serve(message):
        seen(message)
        zi.reply(rep, message["data"].upper())

    zi.set_receive_callback(rep, serve)
    assert zi.connect(req, endpoint)
    for _ in range(3):
        assert zi.request(req, b"shout") == b"SHOUT"
        message = seen.get()
        assert message["data"] == b"shout" and message["topic"] == ""
        assert message["source"].startswith("127.0.0.1:")


def test_requests_as_text_and_buffers(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, bytearray(message["data"])))
    assert zi.request(req, "text") == b"text"
    assert zi.request(req, bytearray(b"buffer")) == b"buffer"
    with pytest.raises(TypeError):
        zi.request(req, 5)


def test_tensors_are_requested_and_answered(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_tensor_receive_callback(rep, lambda message: zi.reply_tensor(rep, message["tensor"] * 2))
    gradient = np.arange(6, dtype=np.float32).reshape(2, 3)
    weights = zi.send_tensor(req, gradient)
    np.testing.assert_array_equal(weights, gradient * 2)
    weights += 1  # it is writable


GRADIENT = np.arange(6, dtype=np.float32).reshape(2, 3)
WEIGHTS = {"first": GRADIENT, "second": np.ones(300_000)}


def assert_same(got, sent):
    if not isinstance(sent, dict):
        got, sent = {"": got}, {"": sent}
    assert got.keys() == sent.keys()
    for name, tensor in sent.items():
        np.testing.assert_array_equal(got[name], tensor)
        assert got[name].dtype == np.asarray(tensor).dtype


@pytest.mark.parametrize(
    "answer", [GRADIENT, WEIGHTS, torch.ones(3), b"done"], ids=["one", "dict", "torch", "bytes"]
)
def test_a_parameter_server_with_one_callback(zi, link, answer):
    req, rep = link("REQ", "REP")
    gradients = Inbox()

    def update(message):
        gradients(message["tensor"])
        zi.reply(rep, answer)

    zi.set_receive_callback(rep, update)
    for ask in (zi.request, zi.send, zi.send_tensor):
        for gradient in (GRADIENT, WEIGHTS):
            weights = ask(req, gradient)
            assert_same(gradients.get(), gradient)
            assert weights == answer if isinstance(answer, bytes) else assert_same(weights, answer) is None


@pytest.mark.parametrize("kinds", [("PUSH", "PULL"), ("PUB", "SUB"), ("PAIR", "PAIR")], ids=str)
@pytest.mark.parametrize("tensor", [GRADIENT, WEIGHTS], ids=["one", "dict"])
def test_tensors_come_to_the_callback_of_data(zi, link, kinds, tensor):
    sender, receiver = link(*kinds)
    inbox = Inbox()
    zi.set_receive_callback(receiver, inbox)
    if kinds[1] == "SUB":
        zi.subscribe(receiver, "t")
        until_received(lambda mark: zi.publish(sender, "t", mark), inbox, b"?")
        assert zi.publish(sender, "t.a", tensor) == 0
    else:
        assert (zi.push if kinds[0] == "PUSH" else zi.send)(sender, tensor) == 0
    message = inbox.get()
    assert_same(message["tensor"], tensor)
    assert message["topic"] == ("t.a" if kinds[1] == "SUB" else "")
    tensors = Inbox()
    zi.set_tensor_receive_callback(receiver, tensors)
    assert zi.send_tensor(sender, tensor, "t.b") == 0
    assert_same(tensors.get()["tensor"], tensor)
    assert inbox.empty()


def test_polling_gives_tensors_too(zi, link):
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    zi.push(push, WEIGHTS)
    assert_same(zi.recv(pull)["tensor"], WEIGHTS)
    zi.push(push, GRADIENT)
    assert_same(zi.recv_tensor(pull)["tensor"], GRADIENT)


def test_a_dict_of_other_things_is_no_message(zi, link):
    push, _ = link("PUSH", "PULL")
    with pytest.raises(NotATensor) as refused:
        zi.push(push, {"status": "ok"})
    assert "send_json" in str(refused.value)


def test_json_requests(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_json_receive_callback(rep, lambda message: zi.send_json(rep, {"got": message["obj"]}))
    assert zi.send_json(req, [1, "two"]) == {"got": [1, "two"]}


def test_each_reply_goes_to_its_request(zi):
    """Many requesters at once, answered by one replier; and many threads on one requester."""
    rep = zi.create_socket("REP")
    zi.bind(rep, "127.0.0.1:0")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, b"re:" + message["data"]))
    reqs = [zi.create_socket("REQ") for _ in range(3)]
    for req in reqs:
        zi.connect(req, zi.get_bound_endpoint(rep))
    wrong = []

    def ask(name, req):
        for number in range(20):
            question = b"%d-%d" % (name, number)
            if zi.request(req, question) != b"re:" + question:
                wrong.append(question)

    threads = [threading.Thread(target=ask, args=(n, reqs[n % 3])) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []


def test_a_request_without_an_answer_times_out(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_polling_mode(rep, True)
    zi.set_socket_option(req, ZmqSocketOption.RCVTIMEO, 50)
    with pytest.raises(Again):
        zi.request(req, b"first")
    assert zi.recv(rep)["data"] == b"first"
    zi.set_socket_option(req, ZmqSocketOption.RCVTIMEO, 5000)
    answer = threading.Thread(target=lambda: _answer_late(zi, rep))
    answer.start()
    assert zi.request(req, b"second") == b"second"
    answer.join(PATIENCE)


def _answer_late(zi, rep):
    zi.reply(rep, b"late")  # to the first request, which nobody waits for any more
    zi.reply(rep, zi.recv(rep)["data"])


def test_a_callback_that_raises_does_not_stop_the_next(zi, link, caplog):
    req, rep = link("REQ", "REP")
    zi.set_socket_option(req, "RCVTIMEO", 100)

    def serve(message):
        zi.reply(rep, b"%d" % (1 // len(message["data"])))

    zi.set_receive_callback(rep, serve)
    with pytest.raises(Again):
        zi.request(req, b"")
    zi.set_socket_option(req, "RCVTIMEO", 5000)
    assert zi.request(req, b"x") == b"1"
    assert zi._of(rep).callback_errors == 1
    assert "ZeroDivisionError" in caplog.text


def test_an_answer_from_another_thread(zi, link):
    req, rep = link("REQ", "REP")
    timers = []

    def serve(message):
        timer = threading.Timer(0.05, zi.reply, (rep, message["data"] * 2))
        timers.append(timer)
        timer.start()

    zi.set_receive_callback(rep, serve)
    for _ in range(3):
        assert zi.request(req, b"x") == b"xx"
    for timer in timers:
        timer.join()


def test_replies_by_callback(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"]))
    inbox = Inbox()
    zi.set_receive_callback(req, inbox)
    for number in range(5):
        assert zi.send(req, b"%d" % number) == 0
    assert [inbox.get()["data"] for _ in range(5)] == [b"%d" % number for number in range(5)]


def test_publish_and_subscribe(zi, link):
    sub, pub = link("SUB", "PUB")
    inbox = Inbox()
    zi.set_subscribe_callback(sub, inbox)
    assert zi.subscribe(sub, "log.")
    until_received(lambda mark: zi.publish(pub, "log.probe", mark), inbox, b"?")
    assert zi.publish(pub, "metric.load", b"no") == 0
    assert zi.publish(pub, "log.error", b"yes") == 0
    message = inbox.get()
    assert (message["topic"], message["data"]) == ("log.error", b"yes")
    assert zi.unsubscribe(sub, "log.")


def test_a_publisher_binds_and_connects(zi):
    pub, first, second = zi.create_socket("PUB"), zi.create_socket("SUB"), zi.create_socket("SUB")
    zi.bind(pub, "127.0.0.1:0")
    zi.bind(second, "127.0.0.1:0")
    zi.connect(first, zi.get_bound_endpoint(pub))
    zi.connect(pub, zi.get_bound_endpoint(second))
    for sub in (first, second):
        inbox = Inbox()
        zi.set_subscribe_callback(sub, inbox)
        zi.subscribe(sub, "")
        until_received(lambda mark: zi.publish(pub, "t", mark), inbox, b"?")


def test_tensors_and_more_by_topic(zi, link, pickling):
    sub, pub = link("SUB", "PUB")
    data, tensors, objects = Inbox(), Inbox(), Inbox()
    zi.set_subscribe_callback(sub, data)
    zi.set_tensor_receive_callback(sub, tensors)
    zi.subscribe(sub, "t")
    until_received(lambda mark: zi.publish(pub, "t", mark), data, b"\xff?")
    tensor = np.arange(4, dtype=np.int64)
    assert zi.send_tensor(pub, tensor, "t.a") == 0
    message = tensors.get()
    np.testing.assert_array_equal(message["tensor"], tensor)
    assert message["topic"] == "t.a"
    zi.set_json_receive_callback(sub, objects)
    assert zi.send_json(pub, {"a": 1}, "t.b") == 0
    assert objects.get() == {"obj": {"a": 1}, "topic": "t.b"}
    zi.set_pyobj_receive_callback(sub, objects)
    assert zi.send_pyobj(pub, {1, 2}, "t.c") == 0
    assert objects.get() == {"obj": {1, 2}, "topic": "t.c"}


def test_what_has_no_topic_goes_to_subscribers_of_everything(zi, link):
    everything, pub = link("SUB", "PUB")
    something = zi.create_socket("SUB")
    zi.connect(something, zi.get_bound_endpoint(pub))
    boxes = {}
    for sub, topic in ((everything, ""), (something, "x")):
        boxes[sub] = Inbox()
        zi.set_subscribe_callback(sub, boxes[sub])
        zi.set_tensor_receive_callback(sub, boxes[sub])
        zi.subscribe(sub, topic)
        until_received(lambda mark: zi.publish(pub, "x", mark), boxes[sub], b"?")
    zi.send_tensor(pub, np.frombuffer(b"xxxx", np.uint8))
    zi.send(pub, b"x, but no topic")
    zi.publish(pub, "x", b"last")
    assert boxes[something].get()["data"] == b"last"
    while "tensor" not in (message := boxes[everything].get()):
        assert message["data"] in (b"?", b"?!")  # what was published while the other one joined
    assert message["topic"] == ""
    assert boxes[everything].get()["data"] == b"x, but no topic"


def test_push_and_pull(zi):
    push = zi.create_socket("PUSH")
    inboxes = []
    for _ in range(3):
        pull = zi.create_socket("PULL")
        zi.bind(pull, "127.0.0.1:0")
        zi.connect(push, zi.get_bound_endpoint(pull))
        inboxes.append(Inbox())
        zi.set_pull_callback(pull, inboxes[-1])
    zi._of(push)._socket.wait_for_peers(3)
    for number in range(9):
        assert zi.push(push, b"%d" % number) == 0
    got = [inbox.get()["data"] for inbox in inboxes for _ in range(3)]
    assert sorted(got) == [b"%d" % number for number in range(9)]


def test_pair(zi, link):
    left, right = link("PAIR", "PAIR")
    at_left, at_right = Inbox(), Inbox()
    zi.set_receive_callback(left, at_left)
    zi.set_receive_callback(right, at_right)
    assert zi.send(left, b"ping") == 0
    assert at_right.get()["data"] == b"ping"
    assert zi.send(right, b"pong") == 0
    assert at_left.get()["data"] == b"pong"


@pytest.mark.parametrize("kinds", [("PUSH", "PULL"), ("PAIR", "PAIR")])
def test_polling(zi, link, pickling, kinds):
    sender, receiver = link(*kinds)
    with pytest.raises(StateError, match="polling mode"):
        zi.recv(receiver)
    assert zi.set_polling_mode(receiver, True)
    with pytest.raises(Again):
        zi.recv(receiver, 1)
    assert zi.send(sender, b"data") == 0
    message = zi.recv(receiver)
    assert message["data"] == b"data" and set(message) == {"source", "data", "topic"}
    zi.send_string(sender, "ä", "topic")
    assert zi.recv_string(receiver) == {"string": "ä", "topic": "topic"}
    zi.send_json(sender, {"a": [1]})
    assert zi.recv_json(receiver) == {"obj": {"a": [1]}, "topic": ""}
    zi.send_multipart(sender, [b"a", b"", b"c"])
    assert zi.recv_multipart(receiver) == {"frames": [b"a", b"", b"c"]}
    zi.send_pyobj(sender, {1: {2}})
    assert zi.recv_pyobj(receiver) == {"obj": {1: {2}}, "topic": ""}
    tensor = np.random.default_rng(0).random((50, 40))
    zi.send_tensor(sender, tensor, "w")
    message = zi.recv_tensor(receiver)
    assert message["topic"] == "w" and set(message) == {"source", "tensor", "topic"}
    np.testing.assert_array_equal(message["tensor"], tensor)


def test_a_message_read_in_the_wrong_form_is_still_there(zi, link):
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    zi.send(push, b"{no json")
    with pytest.raises(ValueError):
        zi.recv_json(pull)
    with pytest.raises(TypeError):
        zi.recv_tensor(pull)
    assert zi.recv_string(pull)["string"] == "{no json"
    zi.send_tensor(push, np.zeros(3))
    with pytest.raises(UsageError, match="tensor"):
        zi.recv_json(pull)
    assert zi.recv_tensor(pull)["tensor"].shape == (3,)


def test_time_outs_of_polling(make):
    zi = make({"rcv_timeout_ms": 20})
    pull = zi.create_socket("PULL")
    zi.bind(pull, "127.0.0.1:0")
    zi.set_polling_mode(pull, True)
    with pytest.raises(Again):
        zi.recv(pull)


def test_sending_to_nobody_gives_a_negative_code(make):
    zi = make({"snd_timeout_ms": 20})
    push = zi.create_socket("PUSH")
    zi.connect(push, f"127.0.0.1:{free_port()}")
    assert zi.push(push, b"x") < 0
    assert zi.send_tensor(push, np.zeros(2)) < 0


def test_futures(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"]))
    push, pull = link("PUSH", "PULL")
    tasks = Inbox()
    zi.set_pull_callback(pull, tasks)
    zi.set_tensor_receive_callback(pull, tasks)

    async def main():
        loop = asyncio.get_running_loop()
        futures = [zi.request_async(req, b"%d" % number, loop) for number in range(10)]
        assert all(isinstance(future, asyncio.Future) for future in futures)
        assert await asyncio.gather(*futures) == [b"%d" % number for number in range(10)]
        assert await zi.push_async(push, b"task", loop) == 0
        assert await zi.send_async(push, b"task", loop) == 0
        assert await zi.send_tensor_async(push, np.ones(3), loop) == 0
        assert await zi.push_async(push, b"task") == 0
        pub = zi.create_socket("PUB")
        assert await zi.publish_async(pub, "t", b"x", loop) == 0
        with pytest.raises(TypeError):
            await zi.request_async(req, 5, loop)

    asyncio.run(main())
    got = [tasks.get() for _ in range(4)]
    assert sorted("tensor" in message for message in got) == [False, False, False, True]


def test_objects_without_pickle(zi, link, monkeypatch):
    monkeypatch.delenv("MOONCAKE_ALLOW_PICKLE", raising=False)
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    value = {"a": (1, {2}), "b": [np.float32(3), 1 << 70]}
    assert zi.send_pyobj(push, value) == 0
    assert zi.recv_pyobj(pull)["obj"] == value
    with pytest.raises(PickleRefused, match="TRANSFER_PICKLE_ALLOW"):
        zi.send_pyobj(push, object())
    for data, error in ((pickle.dumps(1), PickleRefused), (b"text", ProtocolError)):
        zi.push(push, data)
        with pytest.raises(error):
            zi.recv_pyobj(pull)
        assert zi.recv(pull)["data"] == data  # it stayed unread
    zi.set_polling_mode(pull, False)
    arrived, texts = Queue(), Queue()
    zi.set_pyobj_receive_callback(pull, arrived.put)
    zi.set_string_receive_callback(pull, texts.put)
    zi.send_pyobj(push, value)
    zi.send_string(push, "text")
    assert arrived.get(timeout=5)["obj"] == value
    assert texts.get(timeout=5)["string"] == "text"


def test_two_interfaces(make):
    server, client = make(ZmqConfig()), make({"enable_rdma": True})
    rep, req = server.socket("REP"), client.socket("REQ")
    rep.bind("127.0.0.1:0")
    rep.set_receive_callback(lambda message: rep.reply(message["data"]))
    req.connect(rep.get_bound_endpoint())
    assert req.request(b"x") == b"x"


def test_a_program_without_initialize():
    with ZmqInterface() as zi:
        push, pull = zi.socket("PUSH"), zi.socket(ZmqSocketType.PULL)
        inbox = Inbox()
        pull.bind("127.0.0.1:0")
        pull.set_pull_callback(inbox)
        push.connect(pull.get_bound_endpoint())
        assert push.push(b"x") == 0
        assert inbox.get()["data"] == b"x"


def test_sockets_of_transfer_are_peers(zi):
    import transfer

    pull = zi.socket("PULL")
    pull.bind("127.0.0.1:0")
    pull.set_polling_mode(True)
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        push.connect(pull.get_bound_endpoint())
        push.send_multipart([b"a", b"b"])
        assert pull.recv_multipart() == {"frames": [b"a", b"b"]}
        push.send_tensor(np.eye(3))
        np.testing.assert_array_equal(pull.recv_tensor()["tensor"], np.eye(3))


def test_topics_of_zeromq_programs(zi):
    import transfer

    sub = zi.socket("SUB")
    sub.bind("127.0.0.1:0")
    sub.subscribe("a")
    sub.set_polling_mode(True)
    with transfer.Context() as context, context.socket(transfer.PUB) as pub:
        pub.connect(sub.get_bound_endpoint())
        pub.wait_for_peers()
        pub.send_multipart([b"abc", b"data"])
        message = sub.recv()
        assert (message["topic"], message["data"]) == ("abc", b"data")


def test_a_pair_connects_once(zi):
    pair = zi.create_socket("PAIR")
    assert zi.connect(pair, "127.0.0.1:1")
    with pytest.raises(StateError, match=r"is connected to 127\.0\.0\.1:1"):
        zi.connect(pair, "127.0.0.1:2")
    assert zi.get_connected_endpoints(pair) == ["127.0.0.1:1"]
    assert zi.disconnect(pair, "127.0.0.1:1")
    assert zi.connect(pair, "127.0.0.1:2")
