"""Bytes that make no sense end their connection with a typed error, and nobody else notices."""

from __future__ import annotations

import socket

import pytest

from tests.core.raw_frames import LZ4, TENSOR, Raw, read_frame
from tests.faults.raw_peer import accepted, is_closed, next_event, raw_peer, send_frames
from tests.faults.test_bad_peer import BAD_LZ4, BAD_TENSORS, header
from tests.sockets.helpers import Thread
from transfer import ZmqSocketOption
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, Closed, ProtocolError

from .conftest import Inbox

pytestmark = pytest.mark.timeout(30)

BAD = {
    "lz4 that is none": ("compression", Raw(BAD_LZ4["no LZ4"](), LZ4)),
    "lz4 cut off": ("compression", Raw(BAD_LZ4["cut off"](), LZ4)),
    "lz4 of 2^63": ("compression", Raw(BAD_LZ4["bomb of 2^63"](), LZ4)),
    "unknown dtype": BAD_TENSORS["unknown dtype"],
    "shape and length": BAD_TENSORS["shape larger than the data"],
    "compressed tensor": ("compression", Raw(b"no LZ4" * 9, LZ4 | TENSOR, meta=header(8, 1, 100))),
    "python objects": BAD_TENSORS["python objects"],
}


def endpoint_of(sock):
    return "tcp://" + sock.get_bound_endpoint().removeprefix("tcp://")


@pytest.fixture
def linked(zi):
    """A PULL that a PUSH of ours is connected to."""
    pull, push = zi.socket("PULL"), zi.socket("PUSH")
    pull.bind("127.0.0.1:0")
    push.connect(pull.get_bound_endpoint())
    pull._socket.wait_for_peers(1, 10)
    return pull, push


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("how", ["callback", "polling"])
def test_a_bad_message_ends_its_connection_and_no_other(linked, case, how):
    reason, bad = BAD[case]
    pull, push = linked
    monitor = pull._socket.get_monitor()
    inbox = Inbox()
    if how == "callback":
        pull.set_pull_callback(inbox)
        pull.set_tensor_receive_callback(inbox)
    else:
        pull.set_polling_mode(True)
        pull.set_socket_option(ZmqSocketOption.RCVTIMEO, 300)
    with raw_peer(endpoint_of(pull)) as bare:
        send_frames(bare, bad)
        if how == "polling":
            with pytest.raises(Again):
                pull.recv_tensor()
        event = next_event(monitor, "protocol_failed")
        assert event.reason == reason
        assert isinstance(event.error, ProtocolError)
        assert is_closed(bare)
    assert pull._socket._links.state.counts[f"protocol:{reason}"] == 1
    assert push.push(b"still here") == 0
    pull.set_socket_option(ZmqSocketOption.RCVTIMEO, 10_000)
    assert (pull.recv() if how == "polling" else inbox.get())["data"] == b"still here"
    assert inbox.empty()
    assert len(pull._socket.peers()) == 1


def test_a_reply_that_makes_no_sense_fails_its_request(zi):
    req = zi.socket("REQ")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        req.connect(f"127.0.0.1:{listener.getsockname()[1]}")
        asking = Thread(req.request, b"question")
        with accepted(listener, SocketType.REP) as bare:
            asked = read_frame(bare)
            assert asked.data == b"question"
            send_frames(bare, Raw(b"no LZ4" * 9, LZ4, asked.sequence, socket_type=SocketType.REP))
            with pytest.raises(ProtocolError) as caught:
                asking.finish()
            assert caught.value.reason == "compression"
            assert is_closed(bare)


@pytest.mark.parametrize("kind", ["PULL", "SUB", "REQ", "REP", "PAIR", "PUSH"])
def test_a_closed_socket_says_so_first(zi, kind):
    """Not that it is not its turn, or the wrong direction."""
    sock = zi.socket(kind)
    sock._socket.close()
    with pytest.raises(Closed):
        sock._channel.receive(0.0)
