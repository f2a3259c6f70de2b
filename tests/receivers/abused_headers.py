"""Headers, status lines and interim answers that abuse, and what is no HTTP at all."""

from __future__ import annotations

import asyncio

from tests.receivers.behaviour import HEAD, OK, Catalogue, answer, forever, read_head, read_request, stay, write

CATALOGUE = Catalogue()
add = CATALOGUE.add


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
