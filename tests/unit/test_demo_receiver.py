"""The receiver over real sockets: what it answers, what it records, what it refuses to believe."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from standardwebhooks.webhooks import Webhook, hmac_data

from pipeline.demo.behaviours import AppliesThenDrops, Behaviour, Flaky, Hanging, Ok, Rejecting, Slow, Throttling
from pipeline.demo.receipts import Receipt, ReceiptFile, ReceiptTail
from pipeline.demo.receiver import Hook, Receiver, serving
from pipeline.demo.receiver_process import ReceiverProcess

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RECEIPT = Receipt(
    destination_id="one",
    webhook_id="dlv_1",
    received_at=1.5,
    body_sha256="ab",
    signature="valid",
    idempotency_key_fits=True,
    asset=None,
    applies=True,
    is_effect=True,
    status=200,
)
OTHER_SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


def signed(delivery_id: str, body: bytes, secret: str = SECRET, age_seconds: int = 0) -> dict[str, str]:
    moment = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(seconds=age_seconds)
    seconds = str(int(moment.timestamp()))
    try:
        signature = Webhook(secret).sign(delivery_id, moment, body.decode())
    except UnicodeDecodeError:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = hmac_data(key, f"{delivery_id}.{seconds}.".encode() + body)
        signature = f"v1,{base64.b64encode(digest).decode()}"
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": seconds,
        "webhook-signature": signature,
        "Idempotency-Key": delivery_id,
        "Content-Type": "application/json",
    }


@asynccontextmanager
async def receiving(
    folder: Path, behaviour: Behaviour, name: str = "one"
) -> AsyncIterator[tuple[Receiver, aiohttp.ClientSession]]:
    hooks = {name: Hook(secrets=[SECRET], behaviour=behaviour)}
    async with serving(hooks, folder / "receipts.jsonl") as receiver, aiohttp.ClientSession() as session:
        yield receiver, session


async def post(session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]) -> int:
    async with session.post(url, data=body, headers=headers) as response:
        return response.status


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"b":1, "a":1,"a":2}\r\n',
        '{"ä": "\U0001f4be"}'.encode(),
        b"\0\1\0",
        b"\xff\xfe\x80",
        b"x" * 262_144,
    ],
    ids=["empty", "object", "keys", "unicode", "nul", "binary", "large"],
)
async def test_every_body_is_verified_and_hashed_as_it_came(tmp_path: Path, body: bytes) -> None:
    async with receiving(tmp_path, Ok()) as (receiver, session):
        assert await post(session, receiver.url("one"), body, signed("dlv_1", body)) == 200
        (receipt,) = receiver.receipts("one")
    assert receipt.body_sha256 == hashlib.sha256(body).hexdigest()
    assert receipt.signature == ("valid_bytes" if body == b"\xff\xfe\x80" else "valid")
    assert receipt.webhook_id == "dlv_1"
    assert receipt.idempotency_key_fits
    assert receipt.is_effect


@pytest.mark.parametrize("body", [b"{}", b"\xff"], ids=["text", "binary"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda headers: {**headers, "webhook-signature": headers["webhook-signature"][:-4] + "AAA="},
        lambda headers: {**headers, "webhook-signature": "v1"},
        lambda headers: {**headers, "webhook-signature": "v1,%%%"},
        lambda headers: {**headers, "webhook-id": "dlv_2"},
        lambda headers: {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)},
        lambda headers: {**headers, "webhook-timestamp": "soon"},
        lambda headers: {name: value for name, value in headers.items() if name != "webhook-signature"},
    ],
    ids=["signature", "no-version", "no-base64", "id", "timestamp", "no-number", "missing"],
)
async def test_what_was_not_signed_like_this_is_refused_and_recorded_as_invalid(
    tmp_path: Path, body: bytes, spoil: object
) -> None:
    assert callable(spoil)
    async with receiving(tmp_path, Ok()) as (receiver, session):
        assert await post(session, receiver.url("one"), body, spoil(signed("dlv_1", body))) == 401
        (receipt,) = receiver.receipts()
    assert receipt.signature == "invalid"
    assert not receipt.applies


@pytest.mark.parametrize("body", [b"{}", b"\xff"], ids=["text", "binary"])
async def test_another_key_and_an_old_timestamp_are_refused(tmp_path: Path, body: bytes) -> None:
    async with receiving(tmp_path, Ok()) as (receiver, session):
        assert await post(session, receiver.url("one"), body, signed("dlv_1", body, OTHER_SECRET)) == 401
        assert await post(session, receiver.url("one"), body, signed("dlv_1", body, age_seconds=600)) == 401


@pytest.mark.parametrize("body", [b"{}", b"\xff"], ids=["text", "binary"])
async def test_after_a_rotation_either_signature_of_the_header_serves(tmp_path: Path, body: bytes) -> None:
    headers = signed("dlv_1", body)
    headers["webhook-signature"] = (
        signed("dlv_1", body, OTHER_SECRET)["webhook-signature"] + " " + headers["webhook-signature"]
    )
    async with receiving(tmp_path, Ok()) as (receiver, session):
        assert await post(session, receiver.url("one"), body, headers) == 200


async def test_a_repeat_is_a_receipt_and_no_second_effect(tmp_path: Path) -> None:
    async with receiving(tmp_path, Ok()) as (receiver, session):
        for _ in range(3):
            await post(session, receiver.url("one"), b"{}", signed("dlv_1", b"{}"))
        assert [receipt.is_effect for receipt in receiver.receipts()] == [True, False, False]


async def test_the_record_goes_on_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        async with receiving(tmp_path, Ok()) as (receiver, session):
            await post(session, receiver.url("one"), b"{}", signed("dlv_1", b"{}"))
    assert [receipt.is_effect for receipt in receiver.receipts()] == [True, False]


async def test_it_applies_and_drops_the_first_request_of_each_delivery(tmp_path: Path) -> None:
    async with receiving(tmp_path, AppliesThenDrops()) as (receiver, session):
        for delivery_id in ("dlv_1", "dlv_2"):
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await post(session, receiver.url("one"), b"{}", signed(delivery_id, b"{}"))
            assert await post(session, receiver.url("one"), b"{}", signed(delivery_id, b"{}")) == 200
        assert [(r.webhook_id, r.is_effect) for r in receiver.receipts()] == [
            ("dlv_1", True),
            ("dlv_1", False),
            ("dlv_2", True),
            ("dlv_2", False),
        ]


async def test_it_throttles_every_nth_request(tmp_path: Path) -> None:
    async with receiving(tmp_path, Throttling(every=3, retry_after_seconds=7)) as (receiver, session):
        statuses = []
        for number in range(6):
            headers = signed(f"dlv_{number}", b"{}")
            async with session.post(receiver.url("one"), data=b"{}", headers=headers) as response:
                statuses.append((response.status, response.headers.get("Retry-After")))
    assert statuses == [(200, None), (200, None), (429, "7")] * 2


async def test_it_fails_half_the_time_and_the_same_half_under_the_same_seed(tmp_path: Path) -> None:
    runs = []
    for run in ("a", "b"):
        folder = tmp_path / run
        folder.mkdir()
        async with receiving(folder, Flaky(seed=5)) as (receiver, session):
            runs.append(
                [await post(session, receiver.url("one"), b"", signed(f"dlv_{n % 50}", b"")) for n in range(200)]
            )
    assert runs[0] == runs[1]
    assert set(runs[0]) == {200, 500, 503}
    assert 60 < runs[0].count(200) < 140


async def test_a_hanging_destination_holds_neither_its_sender_nor_the_others(tmp_path: Path) -> None:
    hooks = {
        "hangs": Hook(secrets=[SECRET], behaviour=Hanging()),
        "works": Hook(secrets=[SECRET], behaviour=Ok()),
        "slow": Hook(secrets=[SECRET], behaviour=Slow(seconds=0.05)),
        "rejects": Hook(secrets=[SECRET], behaviour=Rejecting()),
    }
    async with serving(hooks, tmp_path / "receipts.jsonl") as receiver, aiohttp.ClientSession() as session:
        hung = asyncio.create_task(post(session, receiver.url("hangs"), b"", signed("dlv_1", b"")))
        async with asyncio.timeout(10):
            while not receiver.receipts("hangs"):  # noqa: ASYNC110 (its record is a file)
                await asyncio.sleep(0.01)
            assert await post(session, receiver.url("works"), b"", signed("dlv_1", b"")) == 200
            assert await post(session, receiver.url("slow"), b"", signed("dlv_1", b"")) == 200
            assert await post(session, receiver.url("rejects"), b"", signed("dlv_1", b"")) == 400
        assert not hung.done()
        hung.cancel()
        await asyncio.wait([hung])


async def test_destination_names_may_hold_what_a_path_must_escape(tmp_path: Path) -> None:
    async with receiving(tmp_path, Ok(), name="a/b c?%#ä") as (receiver, session):
        assert await post(session, receiver.url("a/b c?%#ä"), b"", signed("dlv_1", b"")) == 200
        assert await post(session, receiver.url("another"), b"", signed("dlv_1", b"")) == 404


async def test_a_killed_receiver_has_lost_nothing_and_goes_on(tmp_path: Path) -> None:
    hooks = {"one": Hook(secrets=[SECRET], behaviour=Ok())}
    receiver = ReceiverProcess(hooks, tmp_path / "receiver")
    try:
        for _ in range(2):
            receiver.start()
            async with aiohttp.ClientSession() as session:
                url = f"{receiver.base_url}/hooks/one"
                assert await post(session, url, b"{}", signed("dlv_1", b"{}")) == 200
            receiver.kill()
    finally:
        receiver.stop()
    assert [receipt.is_effect for receipt in ReceiptTail(receiver.receipts).read()] == [True, False]


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with ReceiptFile(path) as file:
        file.append(RECEIPT)
    line = path.read_bytes()
    path.write_bytes(line + line[:20])
    tail = ReceiptTail(path)
    assert list(tail.read()) == [RECEIPT]
    assert list(tail.read()) == []
    path.write_bytes(line + line)
    assert list(tail.read()) == [RECEIPT]


def test_a_record_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    assert list(ReceiptTail(tmp_path / "none").read()) == []
