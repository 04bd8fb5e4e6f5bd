"""Addresses as the kernel reads them, what is inside, and how denials are counted."""

import random
import socket
import struct

import pytest

from retinue.egress import ledger
from retinue.egress.addresses import Place, is_loopback, parse_fib_trie, parse_if_inet6, parse_place
from retinue.egress.connecting import GO_ON, read_again
from retinue.egress.ledger import DESTINATIONS_MAX, Ledger
from retinue.egress.rules import Reach, Rules, parse_net, split_port
from retinue.terms.egress import Denied, EgressRule

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     +-- 192.0.2.0/24 2 0 2
        +-- 192.0.2.0/30 2 0 2
           |-- 192.0.2.0
              /24 link UNICAST
           |-- 192.0.2.2
              /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
     |-- 203.0.113.0
        /24 host LOCAL
"""


def pack(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def build(text: str, port: int) -> bytes:
    if ":" in text:
        return struct.pack("=H", 10) + struct.pack("!HI16sI", port, 0, pack(text), 0)
    return struct.pack("=H", 2) + struct.pack("!H4s8x", port, pack(text))


def test_an_address_is_read_as_the_kernel_reads_it() -> None:
    assert parse_place(build("10.1.2.3", 443), 2) == Place(pack("10.1.2.3"), 443)
    assert parse_place(build("2001:db8::1", 80), 10) == Place(pack("2001:db8::1"), 80)
    assert parse_place(build("::ffff:10.1.2.3", 443), 10) == Place(pack("10.1.2.3"), 443)
    assert parse_place(build("::10.1.2.3", 443), 10) == Place(pack("::10.1.2.3"), 443)


def test_an_address_that_is_too_short_or_of_another_family_is_none() -> None:
    whole = {2: build("10.1.2.3", 443), 10: build("2001:db8::1", 80)}
    for family, raw in whole.items():
        least = 16 if family == 2 else 24
        for size in range(len(raw) + 1):
            assert (parse_place(raw[:size], family) is not None) == (size >= least)
    dice = random.Random(7)
    for family in {*range(64)} - {2, 10}:
        assert parse_place(dice.randbytes(128), family) is None


def test_own_addresses_are_hosts_and_no_networks() -> None:
    assert parse_fib_trie(FIB_TRIE) == {pack("127.0.0.1"), pack("192.0.2.2")}
    assert parse_if_inet6("20010db8000000000000000000000001 01 80 10 80       lo\n\n") == {pack("2001:db8::1")}


@pytest.mark.parametrize("text", ["127.0.0.1", "127.200.3.4", "0.0.0.0", "::1", "::"])
def test_loopback_has_several_spellings(text: str) -> None:
    assert is_loopback(pack(text))


@pytest.mark.parametrize(
    "text", ["126.0.0.1", "128.0.0.1", "0.0.0.1", "::2", "::127.0.0.1", "fe80::1", "64:ff9b::7f00:1"]
)
def test_what_only_looks_like_loopback_is_not(text: str) -> None:
    assert not is_loopback(pack(text))


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ("10.0.0.0/8:443", [("10.9.9.9", 443)], [("10.9.9.9", 80), ("11.0.0.1", 443), ("::ffff:0:0", 443)]),
        ("10.0.0.0/8", [("10.0.0.0", 1), ("10.255.255.255", 65535)], [("9.255.255.255", 1)]),
        ("10.1.2.3", [("10.1.2.3", 5)], [("10.1.2.4", 5)]),
        ("10.1.2.3:5", [("10.1.2.3", 5)], [("10.1.2.3", 6)]),
        ("0.0.0.0/0:53", [("8.8.8.8", 53)], [("2001:db8::1", 53), ("8.8.8.8", 443)]),
        ("2001:db8::/32", [("2001:db8::1", 5)], [("2001:db9::1", 5), ("32.1.13.184", 5)]),
        ("[2001:db8::/32]:443", [("2001:db8:1::1", 443)], [("2001:db8::1", 80)]),
        ("[2001:db8::1]:443", [("2001:db8::1", 443)], [("2001:db8::2", 443)]),
        ("example.org:443", [], [("93.184.216.34", 443)]),
    ],
)
def test_an_entry_admits_its_network_on_its_port(
    entry: str, inside: list[tuple[str, int]], outside: list[tuple[str, int]]
) -> None:
    rules = Rules(EgressRule(udp="full", allow=(entry,)), Reach())
    for is_datagram in (False, True):
        assert [rules.admit(Place(pack(a), p), is_datagram) for a, p in inside] == [True] * len(inside)
        assert [rules.admit(Place(pack(a), p), is_datagram) for a, p in outside] == [False] * len(outside)


def test_ports_are_split_off_where_there_is_one() -> None:
    assert split_port("2001:db8::1") == ("2001:db8::1", 0)
    assert split_port("[2001:db8::/32]:443") == ("2001:db8::/32", 443)
    assert split_port("host.example:80") == ("host.example", 80)
    assert parse_net("host.example:80") is None


def test_the_allocation_is_reached_on_every_port_and_only_ever_grows() -> None:
    reach = Reach()
    rules = Rules(EgressRule(), reach)
    peer, own = Place(pack("10.0.0.2"), 1), Place(pack("10.0.0.1"), 65535)
    assert not rules.admit(peer, is_datagram=False)
    reach.tell(["10.0.0.2", "no address", ""])
    reach.tell(["10.0.0.3"])
    reach.take_own({pack("10.0.0.1")})
    assert rules.admit(peer, is_datagram=False)
    assert rules.admit(own, is_datagram=False)
    reach.take_own(set())
    assert not rules.admit(own, is_datagram=False)


def test_a_loopback_profile_sends_no_datagram_even_to_the_allocation() -> None:
    reach = Reach()
    reach.tell(["10.0.0.2"])
    rules = Rules(EgressRule(udp="loopback"), reach)
    assert not rules.admit(Place(pack("10.0.0.2"), 1), is_datagram=True)
    assert rules.admit(Place(pack("10.0.0.2"), 1), is_datagram=False)
    assert rules.admit(Place(pack("127.0.0.1"), 1), is_datagram=True)


# --- the ledger ------------------------------------------------------------------------------


def deny(replica: str = "a/0", port: int = 1, count: int = 1, at: float = 1.0) -> Denied:
    return Denied(replica, ledger.TCP, "10.0.0.9", port, count, at, at, 7, "python3")


def test_the_same_destination_is_one_line_with_a_count() -> None:
    book = Ledger()
    assert book.add(deny(at=5.0))
    assert not book.add(deny(count=3, at=9.0))
    assert book.list_all() == [Denied("a/0", ledger.TCP, "10.0.0.9", 1, 4, 5.0, 9.0, 7, "python3")]
    assert [line.count for line in book.take_changed(10)] == [4]
    assert book.take_changed(10) == []
    book.add(deny())
    assert [line.count for line in book.take_changed(10)] == [5]


def test_a_service_that_tries_every_port_fills_no_memory() -> None:
    book = Ledger()
    for port in range(3000):
        book.add(deny(port=port))
    book.add(deny("b/0"))
    lines = book.list_all()
    assert len(lines) == DESTINATIONS_MAX + 2
    assert sum(line.count for line in lines) == 3001
    assert [line.count for line in lines if line.what == ledger.MORE] == [3000 - DESTINATIONS_MAX]


def test_lines_that_were_not_heard_are_taken_again() -> None:
    book = Ledger()
    for port in range(5):
        book.add(deny(port=port))
    taken = book.take_changed(2)
    assert len(taken) == 2
    book.put_back(taken)
    assert len(book.take_changed(10)) == 5


def test_a_destination_reads_as_people_write_it() -> None:
    assert deny(port=443).destination == "10.0.0.9:443"
    assert Denied("a/0", ledger.TCP, "2001:db8::1", 443, 1, 0, 0).destination == "[2001:db8::1]:443"
    assert Denied("a/0", ledger.UDP_SOCKET, "", 0, 1, 0, 0).destination == "udp-socket"


@pytest.mark.parametrize(
    ("number", "is_second_try", "answer"),
    [(0, False, 0), (106, False, 106), (106, True, 0), (114, False, 114), (114, True, GO_ON), (111, True, 111)],
)
def test_a_second_try_reads_what_the_first_one_did(number: int, is_second_try: bool, answer: int) -> None:
    assert read_again(number, is_second_try, GO_ON) == answer
