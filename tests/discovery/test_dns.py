"""What DNS says, as `dns://` hears it: over UDP and TCP, with the time for which it holds."""

from __future__ import annotations

import sys

import pytest

import transfer
from tests.discovery.waits import until
from transfer.transports.address import parse
from transfer.transports.config import name_servers
from transfer.transports.discovery.dns import DnsDirectory
from transfer.transports.errors import Again, Broken, Closed, NotSupported, OptionError


def look_up(endpoint="dns://pods.test:5590"):
    return DnsDirectory(parse(endpoint)).look_up()


def hosts(listing):
    return sorted(address.host for address in listing.members)


def test_all_addresses_with_their_time(names):
    names.names["pods.test"], names.ttl = ["10.0.0.1", "10.0.0.2"], 7
    listing = look_up("dns://pods.test:5590?policy=prefer")
    assert hosts(listing) == ["10.0.0.1", "10.0.0.2"] and listing.ttl == 7 and listing.complete
    [one, _] = sorted(listing.members, key=str)
    assert str(one) == "tcp://10.0.0.1:5590?policy=prefer" and one.server_name == "pods.test"


def test_ipv6_where_there_is_no_ipv4(names):
    names.names["pods.test"] = ["fd00::1", "fd00::2"]
    assert hosts(look_up()) == ["fd00::1", "fd00::2"]
    assert str(min(look_up().members, key=str)) == "tcp://[fd00::1]:5590"


def test_a_pod_with_both_families_is_one_pod(names):
    names.names["pods.test"] = ["10.0.0.1", "fd00::1"]
    assert hosts(look_up()) == ["10.0.0.1"]
    assert {kind for _, kind, _ in names.asked} == {"A"}


@pytest.mark.parametrize(
    ("family", "found"),
    [("ipv4", ["10.0.0.1"]), ("ipv6", ["fd00::1"]), ("both", ["10.0.0.1", "fd00::1"])],
)
def test_the_family_can_be_chosen(names, monkeypatch, family, found):
    monkeypatch.setenv("TRANSFER_DNS_FAMILY", family)
    names.names["pods.test"] = ["10.0.0.1", "fd00::1"]
    assert hosts(look_up()) == found


def test_no_such_name_says_nothing_of_those_who_were_there(names):
    names.negative = 5
    listing = look_up()
    assert not listing.members and not listing.complete and listing.ttl == 5
    assert len(names.asked) == 1, "no name has no address of any kind"
    names.names["pods.test"] = []
    assert not look_up().complete, "nor does a name without addresses"


def test_a_chain_holds_as_long_as_its_shortest_part(names):
    names.cnames["pods.test"], names.names["real.test"], names.ttl = ("real.test", 3), ["10.0.0.1"], 60
    listing = look_up()
    assert hosts(listing) == ["10.0.0.1"] and listing.ttl == 3


def test_an_answer_that_is_cut_off_is_asked_for_by_tcp(names):
    names.names["pods.test"] = [f"10.0.{n}.1" for n in range(200)]
    assert len(look_up().members) == 200
    assert [protocol for _, _, protocol in names.asked] == ["udp", "tcp"]


@pytest.mark.parametrize(("mode", "error"), [("servfail", Broken), ("refused", Broken), ("silent", Again)])
def test_no_answer_is_an_error_and_not_nobody(names, mode, error):
    names.names["pods.test"], names.mode = ["10.0.0.1"], mode
    with pytest.raises(error, match=r"dns://pods.test:5590 cannot be looked up"):
        look_up()


def test_the_second_server_is_asked_when_the_first_is_silent(names, monkeypatch):
    names.names["pods.test"] = ["10.0.0.1"]
    monkeypatch.setenv("TRANSFER_DNS", f"127.0.0.1:1,127.0.0.1:{names.port}")
    assert hosts(look_up()) == ["10.0.0.1"]


def test_an_address_that_is_no_host_is_left_out(names):
    names.names["pods.test"] = ["0.0.0.0", "10.0.0.1", "224.0.0.1"]
    assert hosts(look_up()) == ["10.0.0.1"]


def test_the_ttl_is_kept(context, names):
    names.names["pods.test"], names.ttl = ["127.0.0.2"], 2
    context.socket(transfer.PUSH).connect("dns://pods.test:5590")
    until(lambda: len(names.asked) == 2)
    with pytest.raises(AssertionError, match="did not come"):
        until(lambda: len(names.asked) > 2, seconds=1.5)


def test_a_closed_directory_asks_nobody(names):
    directory = DnsDirectory(parse("dns://pods.test:5590"))
    directory.close()
    with pytest.raises(Closed):
        directory.look_up()
    assert names.asked == []


def test_without_the_library_it_is_said_what_to_install(context, monkeypatch):
    monkeypatch.setitem(sys.modules, "dns.resolver", None)
    with pytest.raises(NotSupported, match="discovery") as caught:
        context.socket(transfer.PUSH).connect("dns://pods.test:5590")
    assert "pip install" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "servers"),
    [("", ()), ("10.0.0.1", (("10.0.0.1", 53),)), ("::1, 10.0.0.1:5353", (("::1", 53), ("10.0.0.1", 5353))),
     ("[::1]:5353,[::1]", (("::1", 5353), ("::1", 53)))],
)  # fmt: skip
def test_name_servers_are_named_by_number(text, servers):
    assert name_servers({"TRANSFER_DNS": text}) == servers


@pytest.mark.parametrize("text", ["ns.test", "10.0.0.1:0", "10.0.0.1:x", "10.0.0.1:99999", "[ns]:53"])
def test_and_not_by_anything_else(text):
    with pytest.raises(OptionError, match="TRANSFER_DNS"):
        name_servers({"TRANSFER_DNS": text})
