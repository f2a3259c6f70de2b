"""Answers out of bytes: what they mean does not depend on how they are cut, and nothing leaves its bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delivery.http_answer import (
    EXCERPT_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    INTERIM_MAX,
    READ_BYTES_MAX,
    AnswerParser,
    InvalidAnswerError,
)

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


def parse(data: bytes, *, cuts=(), ends=True):
    parser = AnswerParser()
    places = [0, *sorted(cuts), len(data)]
    for first, last in itertools.pairwise(places):
        if first < last and not parser.is_done:
            parser.feed(data[first:last])
    if ends and not parser.is_done:
        parser.feed_end()
    return parser


def seen(parser):
    return parser.status, parser.headers, parser.excerpt, parser.is_done, parser.is_clean


CLEAN = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nok", 200, b"ok"),
    "no_body": (b"HTTP/1.1 204 \r\n\r\n", 204, b""),
    "no_reason": (b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", 200, b""),
    "not_modified": (b"HTTP/1.1 304 x\r\ncontent-length: 7\r\n\r\n", 304, b""),
    "chunked": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nt: u\r\n\r\n", 200, b"abc"),
    "interim": (INTERIM + b"HTTP/1.1 500 x\r\ncontent-length: 1\r\n\r\n!", 500, b"!"),
    "not_ascii": (b"HTTP/1.1 503 \xff\xfe\r\nx: \xc3\xa9\xff\r\ncontent-length: 0\r\n\r\n", 503, b""),
}


@pytest.mark.parametrize(("data", "status", "body"), CLEAN.values(), ids=CLEAN)
def test_a_whole_answer_leaves_the_connection_clean(data, status, body):
    parser = parse(data, ends=False)
    assert (parser.status, parser.excerpt, parser.is_done, parser.is_clean) == (status, body, True, True)


@pytest.mark.parametrize(("data", "status", "body"), CLEAN.values(), ids=CLEAN)
def test_how_it_is_cut_makes_no_difference(data, status, body):
    whole = seen(parse(data, ends=False))
    assert all(seen(parse(data, cuts=[cut], ends=False)) == whole for cut in range(len(data)))
    assert seen(parse(data, cuts=range(len(data)), ends=False)) == whole


UNCLEAN = {
    "asked_to_close": b"HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 2\r\n\r\nok",
    "http_1_0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "line_feeds": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "until_close": b"HTTP/1.1 200 OK\r\n\r\nok",
    "length_and_chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "unknown_coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\nok",
    "more_than_its_length": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n",
    "cut_off": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
    "cut_off_in_chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nok",
    "bad_chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n",
    "no_end_of_chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokok\r\n",
    "negative_chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n-1\r\n",
    "huge_chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nffffffffffffffffff\r\n",
    "endless_chunk_line": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n1;" + b"a" * 5000,
}


@pytest.mark.parametrize("data", UNCLEAN.values(), ids=UNCLEAN)
def test_what_is_doubtful_after_the_header_keeps_the_status_and_loses_the_connection(data):
    parser = parse(data)
    assert (parser.status, parser.excerpt, parser.is_done, parser.is_clean) == (200, b"ok", True, False)


INVALID = {
    "http_0_9": b"<html>ok</html>",
    "http_2": b"HTTP/2 200\r\n\r\n",
    "http_1_2": b"HTTP/1.2 200 OK\r\n\r\n",
    "another_protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "http_2_frames": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "status_of_two_digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "status_of_four_digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "status_with_sign": b"HTTP/1.1 +20 OK\r\n\r\n",
    "status_of_zeros": b"HTTP/1.1 000 OK\r\n\r\n",
    "status_in_other_digits": b"HTTP/1.1 \xef\xbc\x92\xef\xbc\x90\xef\xbc\x90 OK\r\n\r\n",
    "no_space": b"HTTP/1.1200 OK\r\n\r\n",
    "no_colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "space_before_colon": b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok",
    "folded": b"HTTP/1.1 200 OK\r\nx: y\r\n z\r\n\r\n",
    "name_not_ascii": b"HTTP/1.1 200 OK\r\n\xff: y\r\n\r\n",
    "name_with_nul": b"HTTP/1.1 200 OK\r\na\0b: y\r\n\r\n",
    "two_lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nok",
    "length_with_sign": b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
    "negative_length": b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
    "length_in_hex": b"HTTP/1.1 200 OK\r\ncontent-length: 0x2\r\n\r\nok",
    "huge_length": b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 19 + b"\r\n\r\n",
    "many_interims": INTERIM * (INTERIM_MAX + 1),
    "many_headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n",
    "long_header": b"HTTP/1.1 200 OK\r\na: " + b"b" * HEAD_BYTES_MAX,
    "long_in_all": b"HTTP/1.1 103 x\r\na: %b\r\n\r\n" % (b"b" * 20_000)
    + b"HTTP/1.1 200 x\r\na: %b\r\n\r\n" % (b"b" * 20_000),
    "cut_off": b"HTTP/1.1 200 OK\r\nconte",
}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("step", [1, 100_000], ids=["by_byte", "at_once"])
def test_what_is_no_answer_is_refused(data, step):
    with pytest.raises(InvalidAnswerError):
        parse(data, cuts=range(0, len(data), step))


def test_a_connection_that_ends_without_a_byte_is_not_called_invalid():
    parser = parse(b"")
    assert (parser.status, parser.is_done, parser.is_clean) == (None, True, False)


def test_an_upgrade_that_nobody_asked_for_is_a_status_and_the_end():
    parser = parse(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n\x00\x00", ends=False)
    assert (parser.status, parser.is_done, parser.is_clean) == (101, True, False)


ENDLESS = {
    "length": (b"content-length: 999999999999\r\n", b"x" * 1000),
    "until_close": (b"", b"x" * 1000),
    "chunks": (b"transfer-encoding: chunked\r\n", b"1\r\nx\r\n" * 100),
    "chunk_extensions": (b"transfer-encoding: chunked\r\n", b"1;%b\r\nx\r\n" % (b"e" * 900)),
    "trailers": (b"transfer-encoding: chunked\r\n", b"0\r\n" + b"t: u\r\n" * 100),
}


@pytest.mark.parametrize(("headers", "piece"), ENDLESS.values(), ids=ENDLESS)
def test_an_endless_body_is_heard_up_to_the_bound(headers, piece):
    parser = AnswerParser()
    parser.feed(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n")
    fed = 0
    while not parser.is_done:
        parser.feed(piece)
        fed += len(piece)
        assert fed <= READ_BYTES_MAX + len(piece)
    assert (parser.status, parser.is_clean) == (200, False)
    assert len(parser.excerpt) <= EXCERPT_BYTES_MAX


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_no_bytes_raise_anything_else(data, cuts):
    try:
        parser = parse(data, cuts=[cut for cut in cuts if cut < len(data)])
    except InvalidAnswerError:
        return
    assert parser.is_done


NEARLY = (
    *(b"HTTP/1.1 200 OK", b"HTTP/1.1 100 x", b"\r\n", b"\n", b"content-length: 3", b"transfer-encoding: chunked"),
    *(b"connection: close", b"3", b"0", b"abc", b"x: \xff", b" ", b"a" * 5000),
)
PIECES = st.lists(st.sampled_from(NEARLY), max_size=25)


@given(PIECES, st.lists(st.integers(0, 10_000), max_size=6))
def test_cuts_make_no_difference_to_whatever_is_nearly_an_answer(pieces, cuts):
    data = b"".join(pieces)

    def outcome(places):
        try:
            return seen(parse(data, cuts=places))
        except InvalidAnswerError:
            return "invalid"

    whole, cut = outcome([]), outcome([place for place in cuts if place < len(data)])
    # Bytes after the end are seen in the one case and nobody waits for them in the other.
    assert whole[:4] == cut[:4]
