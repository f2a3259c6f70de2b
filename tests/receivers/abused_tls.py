"""TLS of every broken kind."""

from __future__ import annotations

from tests.receivers.behaviour import HEAD, OK, Catalogue, answer, forever, read_head, reset, stay, write

CATALOGUE = Catalogue()
add = CATALOGUE.add


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
