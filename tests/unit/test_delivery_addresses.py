"""Targets that a destination may not have, in every spelling."""

from __future__ import annotations

import asyncio
import threading
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delivery import addresses
from pipeline.delivery.addresses import (
    ADDRESSES_MAX,
    LookupFailedError,
    Resolver,
    TargetRefusedError,
    checked,
    embedded_ipv4,
    refusal,
)

REFUSED = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",  # metadata of most clouds
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",  # IPv4-compatible, deprecated
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:2::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",  # metadata by IPv6
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "4000::1",
    "::ffff:0:7f00:1",  # IPv4-translated
    "64:ff9b:1:7f00:1::",  # NAT64 of local use
    "64:ff9b::c0a8:101",
    "64:ff9b::e000:1",
    "::ffff:224.0.0.1",
    "::ffff:100.64.0.1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo, of a public host
    "2002:0808:0808::1",  # 6to4, of a public host
    "100.100.100.200",  # metadata of another cloud
    "192.0.0.170",
    "fd20:ce::254",
    "ff05::1:3",
    "ff0e::1",
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "172.15.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700::1111",
    "2a00:1450::1",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
]


@pytest.mark.parametrize("address", REFUSED)
def test_special_addresses_are_refused(address):
    assert refusal(ip_address(address), ()) is not None


@pytest.mark.parametrize("address", OPEN)
def test_public_addresses_are_open(address):
    assert refusal(ip_address(address), ()) is None


def test_an_allow_list_opens_its_networks_and_no_others():
    allowed = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert refusal(ip_address("10.1.2.3"), allowed) is None
    assert refusal(ip_address("::ffff:10.1.2.3"), allowed) is None
    assert refusal(ip_address("fd00::1"), allowed) is None
    assert refusal(ip_address("192.168.0.1"), allowed) is not None
    assert refusal(ip_address("127.0.0.1"), allowed) is not None


@given(st.ip_addresses(v=4))
def test_mapped_addresses_are_judged_as_what_they_lead_to(address):
    for form in (f"::ffff:{address}", f"64:ff9b::{address}"):
        mapped = ip_address(form)
        assert embedded_ipv4(mapped) == address
        assert refusal(mapped, ()) == refusal(address, ())


@given(st.ip_addresses())
def test_whatever_python_calls_private_is_refused(address):
    if embedded_ipv4(address) is None and (not address.is_global or address.is_multicast or address.is_reserved):
        assert refusal(address, ()) is not None


def test_one_bad_address_refuses_the_name():
    good, bad = ip_address("1.1.1.1"), ip_address("10.0.0.1")
    assert checked((good,), ()) == (good,)
    with pytest.raises(TargetRefusedError, match=r"10\.0\.0\.1 is private"):
        checked((good, bad), ())


def test_the_number_of_addresses_is_bounded_after_all_were_checked():
    many = tuple(ip_address(f"1.1.1.{n}") for n in range(1, 20))
    assert checked(many, ()) == many[:ADDRESSES_MAX]
    with pytest.raises(TargetRefusedError):
        checked((*many, ip_address("127.0.0.1")), ())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "1.1.1.1"])
async def test_addresses_need_no_lookup(host):
    assert await Resolver().addresses(host) == ((ip_address(host),), False)


async def test_names_are_looked_up_once_for_all_who_ask():
    lookups = []

    def look_up(host):
        lookups.append(host)
        return (ip_address("1.1.1.1"),)

    resolver = Resolver(look_up)
    answers = await asyncio.gather(*(resolver.addresses("receiver.example") for _ in range(20)))
    assert set(answers) == {((ip_address("1.1.1.1"),), True)}
    assert await resolver.addresses("receiver.example") == ((ip_address("1.1.1.1"),), False)
    assert lookups == ["receiver.example"]


async def test_a_failed_lookup_is_tried_again_by_the_next_who_asks():
    lookups = []

    def look_up(host):
        lookups.append(host)
        raise LookupFailedError(f"{host}: no such host")

    resolver = Resolver(look_up)
    for _ in range(2):
        with pytest.raises(LookupFailedError):
            await resolver.addresses("gone.example")
    assert len(lookups) == 2


async def test_an_old_answer_is_renewed_while_it_is_used(monkeypatch):
    """A name server that hangs holds up nobody who has an answer that is not too old."""
    released, lookups = threading.Event(), []

    def look_up(host):
        lookups.append(host)
        if len(lookups) > 1:
            released.wait(30.0)
        return (ip_address(f"1.1.1.{len(lookups)}"),)

    monkeypatch.setattr(addresses, "CACHE_SECONDS", -1.0)
    resolver = Resolver(look_up)
    first = ip_address("1.1.1.1")
    assert await resolver.addresses("receiver.example") == ((first,), True)
    for _ in range(3):
        assert await resolver.addresses("receiver.example") == ((first,), False)
    released.set()
    for _ in range(3_000):
        if (await resolver.addresses("receiver.example"))[0] != (first,):
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("the answer was never renewed")
    assert lookups[:2] == ["receiver.example"] * 2


async def test_an_answer_that_is_too_old_is_used_no_more(monkeypatch):
    answers = iter(["1.1.1.1", "1.1.1.2"])
    monkeypatch.setattr(addresses, "CACHE_SECONDS", -1.0)
    monkeypatch.setattr(addresses, "STALE_SECONDS", -1.0)
    resolver = Resolver(lambda host: (ip_address(next(answers)),))
    assert await resolver.addresses("receiver.example") == ((ip_address("1.1.1.1"),), True)
    assert await resolver.addresses("receiver.example") == ((ip_address("1.1.1.2"),), True)


@pytest.mark.parametrize("host", ["", "no such host", "a" * 300, "xn--\udc80", "\0"])
def test_a_name_that_is_none_is_a_failed_lookup(host):
    with pytest.raises(LookupFailedError):
        addresses._look_up(host)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost"])
def test_spellings_that_the_system_turns_into_loopback_are_refused_after_the_lookup(host):
    try:
        found = addresses._look_up(host)
    except LookupFailedError:
        return  # this system does not take the spelling at all
    with pytest.raises(TargetRefusedError):
        checked(found, ())
