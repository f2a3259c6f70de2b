"""Batches that no careful producer makes: a record among others whose header's name is not UTF-8."""

from __future__ import annotations

import asyncio
import time

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NotLeaderForPartitionError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as BatchBuilder
from aiokafka.structs import TopicPartition

TRIES = 100

Pair = tuple[str, bytes | None]


class NotText(str):
    """A header's name that is written as bytes that are no UTF-8."""

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return b"\xff\xfe"


def batch(*records: tuple[bytes | None, bytes | None, list[Pair]], codec: int = 0) -> bytes:
    """One batch in Kafka's format 2, from offset 0. ``codec`` is Kafka's number of the compression."""
    builder = BatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    now_ms = int(time.time() * 1000)
    for number, (key, value, headers) in enumerate(records):
        assert builder.append(number, now_ms, key, value, headers) is not None
    return bytes(builder.build())


def produce_batch(bootstrap_servers: str, topic: str, partition: int, content: bytes) -> None:
    """Send it as it is."""

    async def produce() -> None:
        client = AIOKafkaClient(bootstrap_servers=bootstrap_servers)
        await client.bootstrap()
        try:
            await client.set_topics([topic])
            for _ in range(TRIES):
                leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
                request = ProduceRequest(
                    transactional_id=None, required_acks=1, timeout=5_000, topics=[(topic, [(partition, content)])]
                )
                code = (await client.send(leader, request)).topics[0][1][0][1]
                if code != NotLeaderForPartitionError.errno:
                    break
                # A topic that was made a moment ago.
                await asyncio.sleep(0.1)
                await client.force_metadata_update()
            assert code == 0, f"Kafka refuses the batch: {code}"
        finally:
            await client.close()

    asyncio.run(produce())
