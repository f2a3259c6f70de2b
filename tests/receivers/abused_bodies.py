"""Bodies that abuse: the status was heard, so it counts, and what is read of them is bounded."""

from __future__ import annotations

import asyncio
import zlib

from tests.receivers.behaviour import CHUNKED, HEAD, OK, Catalogue, answer, forever, reset, stay

CATALOGUE = Catalogue()
add = CATALOGUE.add

BOMB = zlib.compress(b"\0" * 50_000_000, 9, wbits=31)
RAW_BOMB = zlib.compress(b"\0" * 50_000_000, 9)


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
