"""Connections that end, hang or speak out of turn, at every stage."""

from __future__ import annotations

import asyncio

from tests.receivers.behaviour import HEAD, OK, Catalogue, answer, read_head, read_request, reset, stay, write

CATALOGUE = Catalogue()
add = CATALOGUE.add


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
