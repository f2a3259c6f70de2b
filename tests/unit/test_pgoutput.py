"""pgoutput: what is encoded comes back, and nothing that is cut short passes for a message."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    DecodeError,
    Decoder,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Row,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    Value,
)

# --- an encoder, written from the protocol's description ----------------------------------


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def encode_value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    if isinstance(value, str):
        return b"t" + struct.pack(">I", len(value.encode())) + value.encode()
    assert isinstance(value, bytes)
    return b"b" + struct.pack(">I", len(value)) + value


def encode_row(row: Row) -> bytes:
    return struct.pack(">H", len(row)) + b"".join(encode_value(value) for value in row)


def encode(message: Message) -> bytes:  # noqa: PLR0911  # one for each kind of message
    xid = getattr(message, "xid", None)
    in_stream = b"" if xid is None else struct.pack(">I", xid)
    match message:
        case Begin(lsn, time_us, own_xid):
            return b"B" + struct.pack(">QqI", lsn, time_us, own_xid)
        case Commit(flags, lsn, end, time_us):
            return b"C" + struct.pack(">BQQq", flags, lsn, end, time_us)
        case Origin(lsn, name):
            return b"O" + struct.pack(">Q", lsn) + text(name)
        case Relation(oid, namespace, name, identity, columns):
            head = b"R" + in_stream + struct.pack(">I", oid) + text(namespace) + text(name) + identity.encode()
            return (
                head
                + struct.pack(">H", len(columns))
                + b"".join(
                    struct.pack(">B", c.is_key) + text(c.name) + struct.pack(">Ii", c.type_oid, c.type_modifier)
                    for c in columns
                )
            )
        case Type(oid, namespace, name):
            return b"Y" + in_stream + struct.pack(">I", oid) + text(namespace) + text(name)
        case Insert(oid, values):
            return b"I" + in_stream + struct.pack(">I", oid) + b"N" + encode_row(values)
        case Update(oid, values, old, old_is_key):
            before = b"" if old is None else (b"K" if old_is_key else b"O") + encode_row(old)
            return b"U" + in_stream + struct.pack(">I", oid) + before + b"N" + encode_row(values)
        case Delete(oid, old, old_is_key):
            return b"D" + in_stream + struct.pack(">I", oid) + (b"K" if old_is_key else b"O") + encode_row(old)
        case Truncate(oids, cascade, restart):
            flags = cascade | restart << 1
            return b"T" + in_stream + struct.pack(f">IB{len(oids)}I", len(oids), flags, *oids)
        case LogicalMessage(transactional, lsn, prefix, content):
            head = b"M" + in_stream + struct.pack(">BQ", transactional, lsn) + text(prefix)
            return head + struct.pack(">I", len(content)) + content
        case StreamStart(own_xid, first):
            return b"S" + struct.pack(">IB", own_xid, first)
        case StreamStop():
            return b"E"
        case StreamCommit(own_xid, flags, lsn, end, time_us):
            return b"c" + struct.pack(">IBQQq", own_xid, flags, lsn, end, time_us)
        case StreamAbort(own_xid, subxid):
            return b"A" + struct.pack(">II", own_xid, subxid)


# --- arbitrary messages -------------------------------------------------------------------

u8 = st.integers(0, 2**8 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
names = strings.filter(bool)
values = st.one_of(st.none(), st.just(UNCHANGED), strings, st.binary(max_size=40))
rows = st.lists(values, max_size=8)


def changes(xid: st.SearchStrategy[int | None]) -> st.SearchStrategy[Message]:
    """Messages that carry a transaction id of their own inside a streamed block."""
    columns = st.lists(st.builds(Column, names, u32, i32, st.booleans()), max_size=5).map(tuple)
    return st.one_of(
        st.builds(Relation, u32, names, names, st.sampled_from("dnfi"), columns, xid),
        st.builds(Type, u32, names, names, xid),
        st.builds(Insert, u32, rows, xid),
        st.builds(Update, u32, rows, st.none(), st.just(False), xid),
        st.builds(Update, u32, rows, rows, st.booleans(), xid),
        st.builds(Delete, u32, rows, st.booleans(), xid),
        st.builds(Truncate, st.lists(u32, max_size=4).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(LogicalMessage, st.booleans(), u64, strings, st.binary(max_size=40), xid),
    )


plain_messages = st.one_of(
    st.builds(Begin, u64, i64, u32),
    st.builds(Commit, u8, u64, u64, i64),
    st.builds(Origin, u64, strings),
    st.builds(StreamCommit, u32, u8, u64, u64, i64),
    st.builds(StreamAbort, u32, u32),
    changes(st.none()),
)


@st.composite
def streamed_blocks(draw: st.DrawFn) -> list[Message]:
    inside = draw(st.lists(changes(u32), max_size=4))
    return [draw(st.builds(StreamStart, u32, st.booleans())), *inside, StreamStop()]


streams = st.lists(st.one_of(plain_messages.map(lambda message: [message]), streamed_blocks()), max_size=5).map(
    lambda parts: [message for part in parts for message in part]
)


@given(streams)
def test_a_stream_decodes_to_what_was_encoded(stream: list[Message]) -> None:
    decoder = Decoder()
    assert [decoder.decode(encode(message)) for message in stream] == stream


@given(plain_messages, st.binary(max_size=30))
def test_a_message_may_follow_a_header_of_any_length(message: Message, header: bytes) -> None:
    assert Decoder().decode(header + encode(message), len(header)) == message


@given(plain_messages)
def test_every_proper_prefix_of_a_message_is_an_error_that_names_type_and_offset(message: Message) -> None:
    whole = encode(message)
    for size in range(len(whole)):
        with pytest.raises(DecodeError) as caught:
            Decoder().decode(whole[:size])
        assert caught.value.message_type == whole[: min(size, 1)].decode()
        assert 0 <= caught.value.offset <= size


@given(streamed_blocks())
def test_every_proper_prefix_inside_a_streamed_block_is_an_error(block: list[Message]) -> None:
    for message in block[1:-1]:
        whole = encode(message)
        for size in range(len(whole)):
            decoder = Decoder()
            decoder.decode(encode(block[0]))
            with pytest.raises(DecodeError):
                decoder.decode(whole[:size])


@given(plain_messages, st.binary(min_size=1, max_size=4))
def test_bytes_that_are_left_over_are_an_error(message: Message, extra: bytes) -> None:
    with pytest.raises(DecodeError):
        Decoder().decode(encode(message) + extra)


def decoded(data: bytes) -> Message | DecodeError:
    try:
        return Decoder().decode(data)
    except DecodeError as error:
        return error


@given(st.sampled_from(b"BCORYIUDTMSEcAx"), st.binary(max_size=80))
def test_arbitrary_bytes_give_a_message_or_a_decode_error(kind: int, rest: bytes) -> None:
    data = bytes([kind]) + rest
    result = decoded(data)
    if isinstance(result, DecodeError):
        assert 0 <= result.offset <= len(data)
    else:
        # Flags without a meaning are dropped, so the bytes may differ: the message may not.
        assert decoded(encode(result)) == result


def test_errors_name_the_type_and_the_byte() -> None:
    with pytest.raises(DecodeError, match="'Z', offset 0: unknown message type"):
        Decoder().decode(b"Zabc")
    with pytest.raises(DecodeError, match="'I', offset 8: unknown kind of column value 'x'"):
        Decoder().decode(b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 1) + b"x")
    with pytest.raises(DecodeError, match="'I', offset 5: expected a new row"):
        Decoder().decode(b"I" + struct.pack(">I", 7) + b"K" + encode_row([]))
    with pytest.raises(DecodeError, match="'E', offset 0: no streamed block is open"):
        Decoder().decode(b"E")


def test_text_that_is_not_utf8_is_an_error_at_its_byte() -> None:
    row = b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", 2) + b"a\xff"
    with pytest.raises(DecodeError, match="'I', offset 14: a text value that is not UTF-8"):
        Decoder().decode(row)


def test_an_error_leaves_the_decoder_as_it_was() -> None:
    decoder = Decoder()
    with pytest.raises(DecodeError):
        decoder.decode(encode(StreamStart(1, True))[:-1])
    # Outside a streamed block, a change has no transaction id of its own.
    assert decoder.decode(encode(Insert(7, [b"x"]))) == Insert(7, [b"x"])
