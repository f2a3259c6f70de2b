-- The audit: what its group appends, and what those read who verify, show and export it.

-- name: append
select * from outrider_audit.append(%(entries)s)

-- name: ensure_partitions
select outrider_audit.ensure_partitions(%(days_back)s, %(days_ahead)s)

-- name: expire
select outrider_audit.expire(%(keep_days)s)

-- name: chains
-- Each chain has a tip; one whose tip was removed may have left anchors, tombstones or rows. Of the rows one is looked up
-- for each chain, through record_by_chain.
with recursive found(topic, partition) as (
  (select r.topic, r.partition from outrider_audit.record r order by r.topic, r.partition limit 1)
  union all
  select n.topic, n.partition
  from found f
  cross join lateral (
    select r.topic, r.partition from outrider_audit.record r
    where (r.topic, r.partition) > (f.topic, f.partition)
    order by r.topic, r.partition
    limit 1
  ) n
)
select topic, partition from found
union
select topic, partition from outrider_audit.tip
union
select topic, partition from outrider_audit.anchor
union
select topic, partition from outrider_audit.tombstone
order by topic, partition

-- name: tip_of
select t.topic, t.partition, t.chain_seq, t.hash, clock_timestamp() as at
from outrider_audit.tip t
where t.topic = %(topic)s and t.partition = %(partition)s

-- name: tips
select t.topic, t.partition, t.chain_seq, t.hash, clock_timestamp() as at
from outrider_audit.tip t
order by t.topic, t.partition

-- name: anchors_of
select a.chain_seq, a.hash
from outrider_audit.anchor a
where a.topic = %(topic)s and a.partition = %(partition)s

-- name: tombstones_of
select s.*
from outrider_audit.tombstone s
where s.topic = %(topic)s and s.partition = %(partition)s
order by s.chain_seq

-- name: links_of
-- Reads record_by_chain of every day, merged in order.
select r.*
from outrider_audit.record r
where r.topic = %(topic)s and r.partition = %(partition)s
order by r.topic, r.partition, r.chain_seq

-- name: records_of_delivery
select r.*
from outrider_audit.record r
where r.delivery_id = %(delivery_id)s
order by r.logged_at, r.topic, r.partition, r.chain_seq
limit %(limit)s

-- name: matching_records
-- Days outside the time asked for are not read.
select r.*
from outrider_audit.record r
where r.logged_at >= coalesce(%(since)s::timestamptz, '-infinity')
  and r.logged_at < coalesce(%(until)s::timestamptz, 'infinity')
  and r.topic = coalesce(%(topic)s::text, r.topic)
  and (%(destination_id)s::text is null or r.destination_id = %(destination_id)s)
  and (%(delivery_id)s::text is null or r.delivery_id = %(delivery_id)s)
  and (%(result)s::text is null or r.result = %(result)s)
