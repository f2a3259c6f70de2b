"""What stands before the body of a request."""

from __future__ import annotations

import pytest

from pipeline.delivery.request_head import HeaderRefusedError, fixed_head, request_head


def head(*, fixed=None, event_headers=None, content_type="text/plain", **changes):
    values = {
        "delivery_id": "dlv_1",
        "attempt": 3,
        "signature": "v1,AAAA v1a,BBBB",
        "timestamp": 1_700_000_000,
        "traceparent": "00-a-b-00",
        "body_bytes": 7,
        **changes,
    }
    fixed = fixed or fixed_head("https://receiver.example/hook?a=b%20c")
    lines = request_head(fixed, event_headers=event_headers or {}, content_type=content_type, **values).split(b"\r\n")
    assert lines[-2:] == [b"", b""]
    names = [line.split(b": ")[0].lower() for line in lines[1:-2]]
    assert len(names) == len(set(names))
    return lines[0].decode(), dict(line.decode("latin-1").split(": ", 1) for line in lines[1:-2])


def test_all_that_a_receiver_needs_is_there():
    line, headers = head(event_headers={"x-tenant": "t 1"})
    assert line == "POST /hook?a=b%20c HTTP/1.1"
    agent = headers.pop("user-agent")
    assert agent.startswith("outrider/")
    assert headers == {
        "host": "receiver.example",
        "accept-encoding": "identity",
        "x-tenant": "t 1",
        "content-type": "text/plain",
        "content-length": "7",
        "webhook-id": "dlv_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1,AAAA v1a,BBBB",
        "idempotency-key": "dlv_1",
        "outrider-attempt": "3",
        "traceparent": "00-a-b-00",
    }


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://a.example", "POST / HTTP/1.1", "a.example"),
        ("http://a.example:80/x", "POST /x HTTP/1.1", "a.example"),
        ("https://a.example:80/x", "POST /x HTTP/1.1", "a.example:80"),
        ("http://user:pw@a.example:8080/x?y", "POST /x?y HTTP/1.1", "a.example:8080"),
        ("http://[::1]:8080/", "POST / HTTP/1.1", "[::1]:8080"),
        ("http://a.example/%0d%0aX:y#part", "POST /%0D%0AX:y HTTP/1.1", "a.example"),
    ],
)
def test_request_line_and_host(url, line, host):
    found, headers = head(fixed=fixed_head(url))
    assert (found, headers["host"]) == (line, host)
    assert "authorization" not in headers


def test_the_destinations_own_headers_go_before_those_of_the_event():
    fixed = fixed_head("https://a.example/", (("X-Tenant", "7"), ("x-other", "o")), "Bearer abc")
    _, headers = head(fixed=fixed, event_headers={"x-tenant": "8", "x-event": "e", "traceparent": "given"})
    assert headers["X-Tenant"] == "7"
    assert (headers["x-other"], headers["x-event"], headers["authorization"]) == ("o", "e", "Bearer abc")
    assert headers["traceparent"] == "00-a-b-00"


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\n", "a\0", "a\x7f", "a\r"])
def test_no_value_breaks_out_of_its_line(value):
    with pytest.raises(HeaderRefusedError):
        head(event_headers={"x": value})
    with pytest.raises(HeaderRefusedError):
        head(content_type=value)
    with pytest.raises(HeaderRefusedError):
        fixed_head("https://a.example/", (("x", value),))
    with pytest.raises(HeaderRefusedError):
        fixed_head("https://a.example/", (), value)


def test_a_character_that_has_no_place_in_a_header_is_refused():
    with pytest.raises(HeaderRefusedError):
        head(event_headers={"x": "\u2713"})
