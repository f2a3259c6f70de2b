"""Where a request may go: names are resolved once, each address is checked, and the checked address is connected to.

A receiver's URL is data that somebody typed, and DNS is data that somebody else controls. Without this, a URL
could reach what only this machine can: services on loopback, the private network, a cloud's metadata address.
Such targets are open only to a destination whose ``allowed_networks`` name them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeVar

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
LookUp = Callable[[str], tuple[Address, ...]]
Result = TypeVar("Result")

# The special-purpose registries of IANA: nothing in these is a host on the public internet.
SPECIAL_IPV4 = tuple(
    (IPv4Network(network), name)
    for network, name in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
# Only 2000::/3 is given out for global unicast; these parts of it are not.
GLOBAL_IPV6 = IPv6Network("2000::/3")
SPECIAL_IPV6 = tuple(
    (IPv6Network(network), name)
    for network, name in (
        ("2001::/32", "Teredo"),
        ("2001::/23", "protocol assignments"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
    )
)
IPV4_MAPPED = IPv6Network("::ffff:0:0/96")
NAT64 = IPv6Network("64:ff9b::/96")

ADDRESSES_MAX = 4
# After the first, an answer is renewed in the background; after the second it is used no more. So what one name's server
# does, or leaves undone, does not hold up requests to names that are known.
CACHE_SECONDS = 10.0
STALE_SECONDS = 60.0
CACHE_NAMES_MAX = 4096
# A lookup that hangs holds one thread, and there is one lookup at a time for a name.
LOOKUP_THREADS = 32


class TargetRefusedError(Exception):
    """The address is not one that this destination may have."""


class LookupFailedError(Exception):
    """The name has no address now."""


def refusal(address: Address, allowed_networks: Sequence[Network]) -> str | None:
    """Why a request may not go to this address; None if it may."""
    embedded = embedded_ipv4(address)
    judged: Address = address if embedded is None else embedded
    if any(candidate in network for candidate in (address, judged) for network in allowed_networks):
        return None
    if isinstance(judged, IPv4Address):
        return next((name for network, name in SPECIAL_IPV4 if judged in network), None)
    if judged not in GLOBAL_IPV6:
        return "not global unicast"
    return next((name for network, name in SPECIAL_IPV6 if judged in network), None)


def embedded_ipv4(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv4-mapped or NAT64 address leads to."""
    if isinstance(address, IPv6Address) and (address in IPV4_MAPPED or address in NAT64):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


@lru_cache(maxsize=CACHE_NAMES_MAX)
def checked(addresses: tuple[Address, ...], allowed_networks: tuple[Network, ...]) -> tuple[Address, ...]:
    """All addresses as they are, at most ADDRESSES_MAX. Raises TargetRefusedError if any of them may not be connected to.

    One bad address refuses the name: a name that mixes good and bad ones is an attack, or a mistake to mend.
    """
    for address in addresses:
        reason = refusal(address, allowed_networks)
        if reason is not None:
            raise TargetRefusedError(
                f"{address} is {reason}; add its network to the destination's allowed networks if that is meant"
            )
    return addresses[:ADDRESSES_MAX]


@dataclass(frozen=True, slots=True)
class _CachedLookup:
    addresses: tuple[Address, ...]
    at: float


class Resolver:
    """Looks names up in threads, one lookup at a time for a name, and remembers answers for a short time."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        """``look_up``: addresses of a name, by default the system's; it may block, and raises LookupFailedError."""
        self._look_up_name = look_up or _look_up
        self._places = asyncio.Semaphore(LOOKUP_THREADS)
        self._cached: dict[str, _CachedLookup] = {}
        self._running: dict[str, asyncio.Task[tuple[Address, ...]]] = {}

    async def addresses(self, host: str) -> tuple[tuple[Address, ...], bool]:
        """Addresses of a name, or the address that ``host`` is; and whether they had to be looked up.

        Raises LookupFailedError.
        """
        literal = _literal(host)
        if literal is not None:
            return (literal,), False
        cached = self._cached.get(host)
        age = 0.0 if cached is None else asyncio.get_running_loop().time() - cached.at
        if cached is not None and age <= CACHE_SECONDS:
            return cached.addresses, False
        running = self._running.get(host)
        if running is None:
            running = self._running[host] = asyncio.create_task(self._look_up(host))
            running.add_done_callback(_heed_failure)
        if cached is not None and age <= STALE_SECONDS:
            return cached.addresses, False
        # Shielded: others wait for the same lookup.
        return await asyncio.shield(running), True

    async def _look_up(self, host: str) -> tuple[Address, ...]:
        try:
            async with self._places:
                addresses = await _in_daemon_thread(lambda: self._look_up_name(host))
        finally:
            del self._running[host]
        if len(self._cached) >= CACHE_NAMES_MAX:
            self._cached.clear()
        self._cached[host] = _CachedLookup(addresses, asyncio.get_running_loop().time())
        return addresses


def _heed_failure(lookup: asyncio.Task[tuple[Address, ...]]) -> None:
    """Nobody may have waited for it; that is no defect."""
    if not lookup.cancelled():
        lookup.exception()


async def _in_daemon_thread(work: Callable[[], Result]) -> Result:
    """Run it in a thread that does not hold up the end of the program: a lookup cannot be interrupted."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def finish(act: Callable[[], None]) -> None:
        if not answer.done():
            act()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            act = partial(answer.set_exception, error)
        else:
            act = partial(answer.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, act)

    threading.Thread(target=run, name="lookup", daemon=True).start()
    return await answer


@lru_cache(maxsize=CACHE_NAMES_MAX)
def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _look_up(host: str) -> tuple[Address, ...]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LookupFailedError(f"{host}: {error}") from None
    addresses = dict.fromkeys(ip_address(answer[4][0]) for answer in answers)
    if not addresses:
        raise LookupFailedError(f"{host}: no address")
    return tuple(addresses)
