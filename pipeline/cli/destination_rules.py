"""What may become a destination: its URL and the networks it may lie in. Pure; the sender checks addresses again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from pipeline.delivery.addresses import Address, Network, refusal
from pipeline.delivery.targets import PORT_MAX

URL_BYTES_MAX = 2_048
# What some resolvers take for an address: decimal, octal, hexadecimal, or fewer parts than four.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")

_LOOPBACK: tuple[Address, ...] = (ip_address("127.0.0.1"), ip_address("::1"))


class RuleError(ValueError):
    """What is wrong with it and what to do, in one line."""


def parse_networks(texts: Sequence[str]) -> list[Network]:
    """Raises RuleError for what is no network in CIDR notation."""
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ip_network(text))
        except ValueError as error:
            raise RuleError(f"network {text!r}: {error}; write it as 10.1.0.0/16 or fd00::/8") from None
    return networks


def check_url(
    url: str,
    *,
    allow_http: bool,
    networks: Sequence[Network],
    ports: Sequence[tuple[int, int]] = ((1, PORT_MAX),),
) -> None:
    """Raises RuleError where the URL cannot be posted to, or leads inside without leave.

    ``ports``: inclusive ranges of those that workers send to. Host names are checked for what they resolve to with each request; only what can be seen in the URL itself is
    refused here.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise RuleError(f"URL {url!r} has a space, a control character or one outside ASCII; percent-encode it")
    if len(url) > URL_BYTES_MAX:
        raise RuleError(f"the URL has {len(url)} bytes, the limit is {URL_BYTES_MAX}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise RuleError(f"URL {url!r}: {error}") from None
    if not url.startswith(("http://", "https://")):
        raise RuleError(f"URL {url!r} must begin with https://, in small letters")
    if not host or port == 0:
        raise RuleError(f"URL {url!r} names no host that can be reached")
    if parts.username is not None or parts.password is not None:
        raise RuleError("the URL has a user or password in it; receivers verify the signature instead")
    if parts.fragment:
        raise RuleError(f"URL {url!r} has a fragment, which is never sent; leave it out")
    if parts.scheme == "http" and not allow_http:
        raise RuleError(f"URL {url!r} would be sent in the clear; use https, or say --allow-http")
    used = port or (80 if parts.scheme == "http" else 443)
    if not any(first <= used <= last for first, last in ports):
        raise RuleError(f"URL {url!r} has port {used}, which OUTRIDER_TARGET_PORTS does not allow")
    _check_host(host, networks)


def _check_host(host: str, networks: Sequence[Network]) -> None:
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):
        addresses, name = _LOOPBACK, f"{host} is this machine"
    else:
        try:
            addresses, name = (ip_address(host.removesuffix(".")),), host
        except ValueError:
            if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
                raise RuleError(
                    f"host {host!r} is a number and no address; write four numbers, as in 192.0.2.1"
                ) from None
            return  # a name
    refusals = [refusal(address, networks) for address in addresses]
    if all(refusals):
        raise RuleError(f"{name} ({refusals[0]}): allow it with --allow-network {ip_network(addresses[0])}")
