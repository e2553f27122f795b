"""What may be listened on: this machine alone, unless those who come are asked who they are."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

import transfer
import transfer.zmq as zmq
from tests.security.conftest import TOKEN
from transfer.transports.errors import AddressNotAvailable, SecurityError
from transfer.transports.security.guard import check_listening, is_loopback
from transfer.transports.security.settings import Security
from transfer.transports.tcp import _interface_address

LOOPBACK = ("127.0.0.1", "127.1.2.3", "127.255.255.255", "::1", "localhost", "::ffff:127.0.0.1", "::1%lo")
BEYOND = (
    "0.0.0.0", "::", "*", "", "10.0.0.1", "128.0.0.1", "126.255.255.255", "192.168.1.1", "::2",
    "fe80::1%eth0",
    "::ffff:10.0.0.1", "::127.0.0.1", "2001:db8::1", "localhost.example", "broker", "127.0.0.1.example",
    "0x7f.1", "127.1", "eth0",
)  # fmt: skip


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_alone(host):
    assert is_loopback(host)
    check_listening(host, "there", Security())


@pytest.mark.parametrize("host", BEYOND)
def test_beyond_it(host):
    assert not is_loopback(host)
    with pytest.raises(SecurityError) as caught:
        check_listening(host, "there", Security())
    assert "TRANSFER_UNAUTHENTICATED=allow" in caught.value.hint and "there" in str(caught.value)


@given(st.integers(0, (1 << 32) - 1))
def test_numbers_of_ipv4(number):
    assert is_loopback(str(ipaddress.IPv4Address(number))) == (number >> 24 == 127)
    assert is_loopback(f"::ffff:{ipaddress.IPv4Address(number)}") == (number >> 24 == 127)


@given(st.integers(0, (1 << 128) - 1))
def test_numbers_of_ipv6(number):
    expected = number == 1 or (number >> 32 == 0xFFFF and number >> 24 & 0xFF == 127)
    assert is_loopback(str(ipaddress.IPv6Address(number))) == expected


@given(st.text("0123456789abcdefx.:%lo cht", max_size=20))
def test_no_text_is_taken_for_this_machine(text):
    if is_loopback(text):
        assert text == "localhost" or ipaddress.ip_address(text.partition("%")[0])


def test_who_is_asked(pki):
    good = pki.security()
    token = pki.security(clients="token", token=TOKEN)
    encrypted = Security(pki.issued.certificate, pki.issued.key)
    for security in (good, token, Security(token=TOKEN), Security(unauthenticated=True)):
        check_listening("0.0.0.0", "there", security)
    for security in (encrypted, Security()):
        with pytest.raises(SecurityError):
            check_listening("0.0.0.0", "there", security)
    # a protocol that knows no token
    check_listening("0.0.0.0", "there", good, token=False)
    for security in (token, Security(token=TOKEN)):
        with pytest.raises(SecurityError) as caught:
            check_listening("0.0.0.0", "there", security, token=False)
        assert "TRANSFER_TLS_CLIENTS=certificate" in caught.value.hint


# --- sockets -------------------------------------------------------------------------------------


def interfaces() -> list[str]:
    """One that others reach this machine by, if there is one."""
    found = []
    for _, name in socket.if_nameindex():
        with suppress(AddressNotAvailable):
            found += [name] if not is_loopback(_interface_address(name)) else []
    return found[:1]


ENDPOINTS = ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "rdma://*:0"]


@pytest.mark.parametrize("endpoint", ENDPOINTS + [f"tcp://{name}:0" for name in interfaces()])
def test_sockets_do_not_listen_beyond_it(core, endpoint):
    with transfer.Context(core=core) as context, context.socket(transfer.PULL) as pull:
        with pytest.raises(SecurityError) as caught:
            pull.bind(endpoint)
        assert "TRANSFER_UNAUTHENTICATED=allow" in caught.value.hint
        assert not pull.last_endpoint


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://lo:0", "rdma://127.0.0.1:0"]
)
def test_but_on_it(core, endpoint):
    with transfer.Context(core=core) as context, context.socket(transfer.PULL) as pull:
        pull.bind(endpoint)


def test_ipc_and_inproc_are_for_this_machine(core, tmp_path, pki):
    """Nothing is asked there, also of those who have certificates and tokens."""
    for security in (Security(), pki.security(token=TOKEN)):
        with transfer.Context(core=core, security=security) as context:
            for endpoint in (f"ipc://{tmp_path}/{security.tls}", "inproc://guard"):
                with (
                    context.socket(transfer.PULL, rcvtimeo=10_000) as pull,
                    context.socket(transfer.PUSH) as push,
                ):
                    pull.bind(endpoint)
                    push.connect(endpoint)
                    push.send(b"x")
                    assert pull.recv() == b"x"
                    info = pull.peers()[0]
                    assert info.transport in ("ipc", "inproc")


def test_with_the_word_a_token_or_certificates(core, pki, monkeypatch):
    for security in (Security(unauthenticated=True), Security(token=TOKEN), pki.security()):
        with transfer.Context(core=core, security=security) as context, context.socket(transfer.PULL) as pull:
            pull.bind("tcp://*:0")
    monkeypatch.setenv("TRANSFER_UNAUTHENTICATED", "allow")
    with transfer.Context(core=core) as context, context.socket(transfer.PULL) as pull:
        pull.bind("tcp://*:0")


def test_the_interface_of_pyzmq_too(monkeypatch):
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        with pytest.raises(zmq.ZMQError) as caught:
            pull.bind("tcp://*:5999")
        assert "TRANSFER_UNAUTHENTICATED=allow" in str(caught.value)
        with pytest.raises(zmq.ZMQError):
            pull.bind_to_random_port("tcp://*")
        pull.bind_to_random_port("tcp://127.0.0.1")


def test_what_was_refused_listens_nowhere(core):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        port = taken.getsockname()[1]
    with transfer.Context(core=core) as context, context.socket(transfer.PULL) as pull:
        with pytest.raises(SecurityError):
            pull.bind(f"tcp://*:{port}")
        with socket.socket() as stranger:
            assert stranger.connect_ex(("127.0.0.1", port))
