"""Every way to misbehave. Names say what the receiver does; the decorator says what an attempt must end as.

An outcome is ambiguous exactly where the request had begun and no final status came, or where the status itself is.
"""

from __future__ import annotations

import asyncio
import zlib

from tests.receivers.behaviour import Catalogue, answer, forever, read_head, read_request, reset, stay, write

CATALOGUE = Catalogue()
add = CATALOGUE.add

HEAD = b"HTTP/1.1 200 OK\r\n"
OK = HEAD + b"content-length: 2\r\n\r\nok"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
BOMB = zlib.compress(b"\0" * 50_000_000, 9, wbits=31)
RAW_BOMB = zlib.compress(b"\0" * 50_000_000, 9)


# Bodies: the status was heard, so it counts; what is read of the body is bounded.


@add("success", ambiguous=False)
async def body_drips(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 100000\r\n\r\n")
    await forever(writer, b"d", pause_seconds=0.2)


@add("success", ambiguous=False)
async def body_never_comes(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 5\r\n\r\n")
    await stay(reader)


@add("success", ambiguous=False)
async def body_without_end_or_length(reader, writer):
    await answer(reader, writer, HEAD + b"\r\n")
    await forever(writer, b"x" * 65_536)


@add("success", ambiguous=False)
async def body_of_a_terabyte(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 1000000000000\r\n\r\n")
    await forever(writer, b"x" * 65_536)


@add("success", ambiguous=False)
async def endless_chunks(reader, writer):
    await answer(reader, writer, CHUNKED)
    await forever(writer, b"4000\r\n" + b"c" * 0x4000 + b"\r\n")


@add("success", ambiguous=False)
async def endless_chunks_of_one_byte(reader, writer):
    await answer(reader, writer, CHUNKED)
    await forever(writer, b"1\r\nc\r\n" * 5_000)


@add("success", ambiguous=False)
async def endless_chunk_extensions(reader, writer):
    await answer(reader, writer, CHUNKED)
    await forever(writer, b"1;" + b"e" * 900 + b"\r\nc\r\n")


@add("success", ambiguous=False)
async def endless_chunk_line(reader, writer):
    await answer(reader, writer, CHUNKED + b"1;")
    await forever(writer, b"e" * 65_536)


@add("success", ambiguous=False)
async def endless_trailers(reader, writer):
    await answer(reader, writer, CHUNKED + b"0\r\n")
    await forever(writer, b"t: u\r\n" * 1_000)


@add("success", ambiguous=False)
async def bad_chunk_size(reader, writer):
    await answer(reader, writer, CHUNKED + b"zz\r\nnonsense")
    await stay(reader)


@add("success", ambiguous=False)
async def chunk_size_beyond_numbers(reader, writer):
    await answer(reader, writer, CHUNKED + b"f" * 100 + b"\r\n")
    await stay(reader)


@add("success", ambiguous=False)
async def closes_in_the_body(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 1000\r\n\r\npart")


@add("success", ambiguous=False)
async def resets_in_the_body(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 1000\r\n\r\npart")
    await asyncio.sleep(0.05)
    reset(writer)


@add("success", ambiguous=False)
async def gzip_bomb(reader, writer):
    await answer(reader, writer, HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB), BOMB)
    await stay(reader)


@add("success", ambiguous=False)
async def gzip_bomb_in_chunks(reader, writer):
    await answer(reader, writer, HEAD + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n")
    await forever(writer, b"%x\r\n%b\r\n" % (len(BOMB), BOMB))


@add("success", ambiguous=False)
async def deflate_bomb(reader, writer):
    head = HEAD + b"content-encoding: deflate\r\ncontent-length: %d\r\n\r\n" % len(RAW_BOMB)
    await answer(reader, writer, head, RAW_BOMB)
    await stay(reader)


@add("success", ambiguous=False)
async def brotli_without_end(reader, writer):
    await answer(reader, writer, HEAD + b"content-encoding: br\r\n\r\n")
    await forever(writer, b"\xff" * 65_536)


@add("success", ambiguous=False)
async def gzip_cut_off(reader, writer):
    part = BOMB[:50]
    await answer(reader, writer, HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(part), part)
    await stay(reader)


@add("success", ambiguous=False)
async def gzip_that_is_none(reader, writer):
    await answer(reader, writer, HEAD + b"content-encoding: gzip, br, gzip\r\ncontent-length: 2\r\n\r\nok")
    await stay(reader)


@add("success", ambiguous=False)
async def body_with_204(reader, writer):
    await answer(reader, writer, b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello")
    await stay(reader)


@add("success", ambiguous=False)
async def length_and_chunks(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    await stay(reader)


@add("success", ambiguous=False)
async def second_answer_that_nobody_asked_for(reader, writer):
    while True:
        await answer(reader, writer, OK + b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n")


# Headers


@add("invalid_answer", "timeout_after_sent", ambiguous=True)
async def status_line_drips(reader, writer):
    await read_request(reader)
    for byte in b"HTTP/1.1 200 OK":
        await write(writer, bytes([byte]))
        await asyncio.sleep(0.2)
    await stay(reader)


@add("timeout_after_sent", ambiguous=True)
async def headers_drip(reader, writer):
    await answer(reader, writer, HEAD)
    await forever(writer, b"a", pause_seconds=0.2)


@add("invalid_answer", ambiguous=True)
async def header_without_end(reader, writer):
    await answer(reader, writer, HEAD + b"x: ")
    await forever(writer, b"a" * 65_536)


@add("invalid_answer", ambiguous=True)
async def header_name_without_end(reader, writer):
    await answer(reader, writer, HEAD)
    await forever(writer, b"a" * 65_536)


@add("invalid_answer", ambiguous=True)
async def one_huge_header(reader, writer):
    await answer(reader, writer, HEAD + b"x: " + b"a" * 1_000_000 + b"\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def a_hundred_thousand_headers(reader, writer):
    await answer(reader, writer, HEAD + b"".join(b"h%d: v\r\n" % n for n in range(100_000)) + b"\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def headers_without_end(reader, writer):
    await answer(reader, writer, HEAD)
    await forever(writer, b"a: b\r\n" * 10_000)


@add("invalid_answer", ambiguous=True)
async def flood_of_100_continue(reader, writer):
    await read_request(reader)
    await forever(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000)


@add("invalid_answer", ambiguous=True)
async def flood_of_103_early_hints(reader, writer):
    await read_request(reader)
    await forever(writer, b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n" * 1_000)


@add("invalid_answer", "timeout_after_sent", ambiguous=True)
async def drip_of_102_processing(reader, writer):
    await read_request(reader)
    await forever(writer, b"HTTP/1.1 102 Processing\r\n\r\n", pause_seconds=0.05)


@add("invalid_answer", ambiguous=True)
async def two_lengths(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nok")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def negative_length(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: -1\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def folded_header(reader, writer):
    await answer(reader, writer, HEAD + b"x: a\r\n b\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def header_without_colon(reader, writer):
    await answer(reader, writer, HEAD + b"nonsense\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def nul_in_a_header_name(reader, writer):
    await answer(reader, writer, HEAD + b"a\0b: c\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("success", ambiguous=False)
async def nul_in_a_header_value(reader, writer):
    await answer(reader, writer, HEAD + b"server: a\0b\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("success", ambiguous=False)
async def headers_not_ascii(reader, writer):
    await answer(
        reader, writer, b"HTTP/1.1 200 \xff\xfe\r\nserver: \xc3\xa9\xff\x80\r\ncontent-length: 2\r\n\r\n\xff\xfe"
    )
    await stay(reader)


@add("throttled", ambiguous=False)
async def retry_after_not_ascii(reader, writer):
    await answer(reader, writer, b"HTTP/1.1 503 x\r\nretry-after: \xff\xfe\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def http_0_9(reader, writer):
    await answer(reader, writer, b"<html>received</html>\n")


@add("invalid_answer", ambiguous=True)
async def http_2(reader, writer):
    await answer(reader, writer, b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\0" * 18)
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def another_protocol(reader, writer):
    await answer(reader, writer, b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def status_of_letters(reader, writer):
    await answer(reader, writer, b"HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def status_of_four_digits(reader, writer):
    await answer(reader, writer, b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def status_that_http_does_not_know(reader, writer):
    await answer(reader, writer, b"HTTP/1.1 999 Request denied\r\ncontent-length: 0\r\n\r\n")
    await stay(reader)


@add("invalid_answer", ambiguous=True)
async def upgrade_that_nobody_asked_for(reader, writer):
    await answer(
        reader, writer, b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    )
    await forever(writer, b"\x82\x7f" + b"\xff" * 8 + b"w" * 65_536)


@add("success", ambiguous=False)
async def continue_and_then_an_answer(reader, writer):
    await read_head(reader)
    await write(writer, b"HTTP/1.1 100 Continue\r\n\r\n")
    await asyncio.sleep(0.05)
    await write(writer, OK)
    await stay(reader)


@add("redirect", ambiguous=False)
async def redirect_to_metadata(reader, writer):
    await answer(
        reader,
        writer,
        b"HTTP/1.1 307 x\r\nlocation: http://169.254.169.254/latest/meta-data/\r\ncontent-length: 0\r\n\r\n",
    )
    await stay(reader)


@add("redirect", ambiguous=False)
async def redirect_to_itself_for_ever(reader, writer):
    while True:
        await answer(reader, writer, b"HTTP/1.1 308 x\r\nlocation: /\r\ncontent-length: 0\r\n\r\n")


# Connections that end, at every stage


@add("connection_lost", "connect_failed", ambiguous=True)
async def closes_at_once(reader, writer):
    pass


@add("connection_lost", "connect_failed", ambiguous=True)
async def resets_at_once(reader, writer):
    reset(writer)


@add("connection_lost", ambiguous=True)
async def closes_after_the_header_was_read(reader, writer):
    await read_head(reader)


@add("connection_lost", ambiguous=True)
async def resets_in_the_middle_of_the_request(reader, writer):
    await read_head(reader)
    await reader.read(1)
    reset(writer)


@add("connection_lost", ambiguous=True)
async def closes_without_an_answer(reader, writer):
    await read_request(reader)


@add("connection_lost", ambiguous=True)
async def resets_without_an_answer(reader, writer):
    await read_request(reader)
    reset(writer)


@add("invalid_answer", ambiguous=True)
async def closes_in_the_status_line(reader, writer):
    await answer(reader, writer, b"HTTP/1.1 20")


@add("invalid_answer", ambiguous=True)
async def closes_in_the_headers(reader, writer):
    await answer(reader, writer, HEAD + b"content-le")


@add("timeout_after_sent", ambiguous=True)
async def never_answers(reader, writer):
    await read_request(reader)
    await stay(reader)


@add("timeout_after_sent", ambiguous=True)
async def never_reads(reader, writer):
    await asyncio.sleep(3600)


@add("rejected", ambiguous=False)
async def answers_before_the_body_was_read(reader, writer):
    await read_head(reader)
    await write(writer, b"HTTP/1.1 413 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    await stay(reader)  # closing with unread bytes would reset the answer away


@add("success", "invalid_answer", "connection_lost", ambiguous=True)
async def answers_before_it_is_asked(reader, writer):
    await write(writer, OK)
    await stay(reader)


@add("success", ambiguous=False)
async def closes_after_each_answer_without_saying_so(reader, writer):
    await answer(reader, writer, OK)


@add("gone", ambiguous=False)
async def is_gone(reader, writer):
    while True:
        await answer(reader, writer, b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n")


# TLS of every broken kind


@add("success", ambiguous=False, tls="right")
async def tls_as_it_should_be(reader, writer):
    while True:
        await answer(reader, writer, OK)


@add("tls_failed", ambiguous=False, tls="self_signed")
async def tls_self_signed(reader, writer):
    await answer(reader, writer, OK)


@add("tls_failed", ambiguous=False, tls="expired")
async def tls_expired(reader, writer):
    await answer(reader, writer, OK)


@add("tls_failed", ambiguous=False, tls="not_yet_valid")
async def tls_not_yet_valid(reader, writer):
    await answer(reader, writer, OK)


@add("tls_failed", ambiguous=False, tls="wrong_host")
async def tls_for_another_host(reader, writer):
    await answer(reader, writer, OK)


@add("tls_failed", ambiguous=False, tls="other_ca")
async def tls_of_an_unknown_authority(reader, writer):
    await answer(reader, writer, OK)


@add("tls_failed", ambiguous=False, tls="old")
async def tls_too_old(reader, writer):
    await answer(reader, writer, OK)


# TLS 1.3 tells a client only after its part of the handshake that its certificate is missing: the request has gone by then.
@add("tls_failed", "connection_lost", ambiguous=True, tls="wants_client")
async def tls_that_wants_a_client_certificate(reader, writer):
    await answer(reader, writer, OK)


@add("connection_lost", ambiguous=True, tls="right")
async def tls_closed_after_the_handshake(reader, writer):
    await read_head(reader)
    writer.transport.abort()


@add("success", ambiguous=False, tls="right")
async def tls_cut_in_the_body(reader, writer):
    await answer(reader, writer, HEAD + b"content-length: 1000\r\n\r\npart")
    writer.transport.abort()


@add("tls_failed", ambiguous=False, https=True)
async def plaintext_on_a_tls_port(reader, writer):
    await reader.read(1)
    await write(writer, b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


@add("timeout_before_sent", ambiguous=False, https=True)
async def tls_handshake_hangs(reader, writer):
    await stay(reader)


@add("timeout_before_sent", ambiguous=False, https=True)
async def tls_handshake_drips(reader, writer):
    await reader.read(1)
    # A record of a handshake message that is 16 KiB long and comes byte by byte.
    await write(writer, b"\x16\x03\x03\x40\x00")
    await forever(writer, b"\x02", pause_seconds=0.1)


@add("tls_failed", ambiguous=False, https=True)
async def tls_handshake_is_cut(reader, writer):
    await reader.read(100)


@add("tls_failed", ambiguous=False, https=True)
async def tls_handshake_is_reset(reader, writer):
    await reader.read(100)
    reset(writer)


@add("tls_failed", ambiguous=False, https=True)
async def tls_handshake_is_garbage(reader, writer):
    await reader.read(100)
    await write(writer, bytes(range(256)))
    await stay(reader)
