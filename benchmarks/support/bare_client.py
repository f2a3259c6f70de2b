"""The least that a sender of webhooks can do: sign and post, from one process, with aiohttp.

`python -m benchmarks.support.bare_client URL REQUESTS CONCURRENCY` prints one JSON object: `seconds` and `cpu_seconds` of
the requests, without the start of the process.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import Iterator

import aiohttp
import uvloop

from benchmarks.support.admitting import PAYLOAD


async def post(url: str, requests: int, concurrency: int) -> dict[str, float]:
    key = os.urandom(32)
    numbers = iter(range(requests))
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(_post_each(session, url, key, iter(range(5))) for _ in range(concurrency)))
        begun, used = time.monotonic(), time.process_time()
        await asyncio.gather(*(_post_each(session, url, key, numbers) for _ in range(concurrency)))
        return {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - used}


async def _post_each(session: aiohttp.ClientSession, url: str, key: bytes, numbers: Iterator[int]) -> None:
    for number in numbers:
        webhook_id, timestamp = f"msg_{number:032x}", str(int(time.time()))
        signed = f"{webhook_id}.{timestamp}.".encode() + PAYLOAD
        signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        headers = {
            "webhook-id": webhook_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{signature}",
            "idempotency-key": webhook_id,
            "content-type": "application/json",
        }
        async with session.post(url, data=PAYLOAD, headers=headers, allow_redirects=False) as answer:
            await answer.read()
            if answer.status != 200:
                raise SystemExit(f"the receiver answered {answer.status}")


if __name__ == "__main__":
    print(json.dumps(uvloop.run(post(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
