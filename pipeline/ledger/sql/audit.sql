-- What the audit group writes.

-- name: record_messages
-- A message that was recorded before stays as it is.
insert into outrider_audit.record (
  topic, partition, log_offset, logged_at, delivery_id, destination_id, dispatch_seq, attempt, result, body_sha256, defect)
select *
from unnest(
  %(topics)s::text[], %(partitions)s::integer[], %(log_offsets)s::bigint[], %(logged_at)s::timestamptz[],
  %(delivery_ids)s::text[], %(destination_ids)s::text[], %(dispatch_seqs)s::integer[], %(attempts)s::integer[],
  %(results)s::text[], %(body_sha256s)s::bytea[], %(defects)s::text[]
)
on conflict do nothing
