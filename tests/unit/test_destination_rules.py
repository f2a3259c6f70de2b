"""What may become a destination's URL."""

from __future__ import annotations

import pytest

from pipeline.cli.destination_rules import RuleError, check_url, parse_networks


@pytest.mark.parametrize(
    ("url", "networks", "message"),
    [
        ("http://receiver.example", [], "use https, or say --allow-http"),
        ("ftp://receiver.example", [], "https://"),
        ("receiver.example", [], "https://"),
        ("", [], "https://"),
        ("HTTPS://receiver.example/", [], "small letters"),
        ("https://", [], "names no host"),
        ("https://receiver.example:0/", [], "names no host"),
        ("https://user:pw@receiver.example", [], "user or password"),
        ("https://receiver.example/#part", [], "fragment"),
        ("https://receiver.example/a b", [], "space"),
        ("https://receiver.example/\r\nx: y", [], "control character"),
        ("https://żółć.example/", [], "outside ASCII"),
        ("https://receiver.example:99999/", [], "Port out of range"),
        ("https://[::1/", [], "Invalid IPv6"),
        ("https://receiver.example/" + "x" * 2_048, [], "limit is 2048"),
        ("https://127.0.0.1/", [], "--allow-network 127.0.0.1/32"),
        ("https://localhost/", [], "this machine"),
        ("https://x.localhost./", [], "this machine"),
        ("https://10.1.2.3/", [], "private"),
        ("https://10.1.2.3./", [], "private"),
        ("https://2130706433/", [], "no address"),
        ("https://0x7f000001/", [], "no address"),
        ("https://0x7f.0.0.1/", [], "no address"),
        ("https://0177.0.0.1/", [], "no address"),
        ("https://127.1/", [], "no address"),
        ("https://1.2.3.4.5/", [], "no address"),
        ("https://receiver.0x/", [], "no address"),
        ("https://good.example@169.254.169.254/", [], "user or password"),
        ("https://[::ffff:a9fe:a9fe]/", [], "link-local"),
        ("https://[2002:7f00:1::1]/", [], "6to4"),
        ("https://[2001:0:7f00:1::1]/", [], "Teredo"),
        ("https://[fe80::1%25eth0]/", [], "Invalid IPv6|not global|no host|zone"),
        ("https://169.254.169.254/", [], "link-local"),
        ("https://224.0.0.1/", [], "multicast"),
        ("https://[::1]/", [], "--allow-network ::1/128"),
        ("https://[::ffff:127.0.0.1]/", [], "loopback"),
        ("https://[64:ff9b::a00:1]/", [], "private"),
        ("https://10.1.2.3/", ["10.2.0.0/16", "fd00::/8"], "private"),
    ],
)
def test_url_is_refused_in_one_line(url: str, networks: list[str], message: str) -> None:
    with pytest.raises(RuleError, match=message) as refused:
        check_url(url, allow_http=False, networks=parse_networks(networks))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "networks"),
    [
        ("http://receiver.example", []),
        ("http://127.0.0.1:8000/", ["127.0.0.0/8"]),
        ("https://localhost/", ["::1/128"]),
        ("https://LOCALHOST/", ["127.0.0.0/8"]),
        ("https://[fd00::1]:8443/x?y=z", ["10.0.0.0/8", "fd00::/8"]),
        ("https://8.8.8.8/", []),
        ("https://xn--kga3bq.example/", []),
    ],
)
def test_url_is_taken(url: str, networks: list[str]) -> None:
    check_url(url, allow_http=True, networks=parse_networks(networks))


def test_a_port_that_workers_do_not_send_to_is_refused():
    for url, ports in (("https://a.example:22/", [(80, 80), (443, 443)]), ("http://a.example/", [(443, 443)])):
        with pytest.raises(RuleError, match="OUTRIDER_TARGET_PORTS"):
            check_url(url, allow_http=True, networks=[], ports=ports)
    check_url("https://a.example/", allow_http=False, networks=[], ports=[(443, 443)])


@pytest.mark.parametrize("text", ["10.0.0.1/8", "inside", "", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(RuleError, match="write it as"):
        parse_networks([text])
