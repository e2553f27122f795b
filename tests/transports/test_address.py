"""Endpoints: what is understood, what is refused, and that every refusal helps."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from transfer.transports.address import POLICIES, Address, is_numeric, parse
from transfer.transports.errors import AddressError, UsageError

UNDERSTOOD = [
    ("tcp://127.0.0.1:5555", Address("tcp", "127.0.0.1", 5555)),
    ("tcp://*:5555", Address("tcp", "*", 5555)),
    ("tcp://127.0.0.1:*", Address("tcp", "127.0.0.1", 0)),
    ("tcp://localhost:0", Address("tcp", "localhost", 0)),
    ("tcp://[::1]:5555", Address("tcp", "::1", 5555)),
    ("tcp://[fe80::1%eth0]:5555", Address("tcp", "fe80::1%eth0", 5555)),
    ("tcp://eth0:5555", Address("tcp", "eth0", 5555)),
    ("tcp://my_host.example.org:1/", Address("tcp", "my_host.example.org", 1)),
    ("TCP://h:1", Address("tcp", "h", 1)),
    ("rdma://node7:5555?policy=require", Address("rdma", "node7", 5555, policy="require")),
    ("ucx://node7:5555", Address("ucx", "node7", 5555)),
    ("ipc:///tmp/a b.sock", Address("ipc", path="/tmp/a b.sock")),
    ("ipc://@name", Address("ipc", path="@name")),
    ("ipc://relative", Address("ipc", path="relative")),
    ("inproc://any thing?policy=x&y", Address("inproc", path="any thing?policy=x&y")),
    (b"tcp://h:1", Address("tcp", "h", 1)),
]


@pytest.mark.parametrize(("text", "address"), UNDERSTOOD)
def test_understood(text, address):
    assert parse(text) == address
    assert parse(str(address)) == address


REFUSED = [
    "", "tcp", "tcp://", "tcp://host", "tcp://host:", "tcp://:5555", "tcp://host:65536", "tcp://host:-1",
    "tcp://host:5 5", "tcp://host:٣", "tcp://::1:5555", "tcp://[::1]", "tcp://[host]:1", "tcp://[1.2.3.4]:1",
    "tcp://host:1/path", "tcp://ho st:1", "tcp://host:1?policy=always", "tcp://host:1?colour=red",
    "tcp://host:1?policy", "tcp://-host:1", "host:5555", "127.0.0.1:5555", "1x://host:1", "ipc://", "ipc://@",
    "ipc://" + "x" * 108, "inproc://", "inproc://" + "x" * 256, "tcp://h\0:1", "tcp://h\n:1", b"\xff\xfe",
    "tcp://" + "h" * 300 + ":1", "://host:1",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(AddressError) as caught:
        parse(text)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text", ["tcp://::1:5555", "tcp://host", "host:5555", "ipc://", "tcp://h:1?policy=x"]
)
def test_refusals_say_what_to_do(text):
    with pytest.raises(AddressError, match="hint: "):
        parse(text)


def test_no_text():
    with pytest.raises(AddressError, match="not int"):
        parse(5555)


def test_without_scheme_only_where_it_is_allowed():
    assert parse("node7:5555", default_scheme="tcp") == Address("tcp", "node7", 5555)
    assert parse("ipc://x", default_scheme="tcp").scheme == "ipc"
    with pytest.raises(AddressError, match="write tcp://node7:5555"):
        parse("node7:5555")


def test_wildcards_and_names():
    assert parse("tcp://*:1").is_wildcard
    assert parse("tcp://h:*").is_wildcard
    assert not parse("tcp://h:1").is_wildcard
    assert not parse("ipc://h").is_wildcard
    assert parse("ipc://@h").is_abstract
    assert parse("tcp://h:1").needs_lookup
    for numeric in ("tcp://1.2.3.4:1", "tcp://[::1]:1", "tcp://localhost:1", "tcp://*:1", "ipc://h"):
        assert not parse(numeric).needs_lookup
    assert str(parse("tcp://[::1]:*").with_port(7)) == "tcp://[::1]:7"


hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]{1,5})?", fullmatch=True),
    st.just("*"),
)


@given(
    st.sampled_from(["tcp", "rdma", "ucx", "xyz+1"]),
    hosts,
    st.integers(0, 65535),
    st.none() | st.sampled_from(POLICIES),
)
def test_every_address_survives_its_text(scheme, host, port, policy):
    address = Address(scheme, host, port, policy=policy)
    assert parse(str(address)) == address


@given(st.text(max_size=60) | st.binary(max_size=40))
def test_anything_else_is_an_address_error(text):
    try:
        address = parse(text)
    except AddressError:
        return
    assert parse(str(address)) == address


@given(st.sampled_from("tcp://[]:*?policy=auto 1%@/"), st.integers(0, 30), st.sampled_from(UNDERSTOOD))
def test_a_letter_more_is_understood_or_refused(letter, position, example):
    text = example[0] if isinstance(example[0], str) else example[0].decode()
    test_anything_else_is_an_address_error.hypothesis.inner_test(text[:position] + letter + text[position:])


def test_numbers():
    assert is_numeric("10.0.0.1") and is_numeric("::1") and not is_numeric("eth0")
