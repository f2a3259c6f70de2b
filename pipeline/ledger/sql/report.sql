-- The reconciliation report: the ledger as of one moment, topics and a receiver's list beside it, all in temporary tables, so
-- that the server sorts and joins them on its disk and nobody holds a million rows in memory.

-- name: lock_holders
-- Who keeps readers from our tables: with the lock, or in front of them in its queue.
select l.pid, a.usename as "user", nullif(a.application_name, '') as application, l.relation::regclass::text as "table",
       not l.granted as is_waiting
from pg_locks l
join pg_class c on c.oid = l.relation
join pg_namespace n on n.oid = c.relnamespace
left join pg_stat_activity a on a.pid = l.pid
where l.mode = 'AccessExclusiveLock'
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and n.nspname in ('outrider', 'outrider_audit')
  and c.relkind in ('r', 'p')
  and l.pid <> pg_backend_pid()
order by not l.granted, l.pid, 4
limit 5

-- name: take_deliveries
-- What is reported on. Buckets begin at 1970 in UTC.
create temporary table report_delivery as
select d.delivery_id, d.destination_id, d.event_id, d.state, d.dispatch_seq, d.attempt, d.created_at,
       case d.state when 'pending' then coalesce(d.waiting_reason, 'due') when 'enqueued' then 'in_transport'
         when 'leased' then 'in_flight' end as waiting,
       e.payload_sha256 as body_sha256,
       date_bin(make_interval(secs => %(bucket_seconds)s), d.created_at, timestamptz '1970-01-01 00:00:00+00') as bucket
from outrider.delivery d
join outrider.event e on e.event_id = d.event_id
where d.created_at >= %(since)s and d.created_at < %(until)s
  and (%(destination_id)s::text is null or d.destination_id = %(destination_id)s)

-- name: take_dispatches
create temporary table report_outbox as
select o.delivery_id, o.dispatch_seq, o.created_at
from outrider.dispatch_outbox o
where o.created_at >= %(since)s
  and exists (select from report_delivery d where d.delivery_id = o.delivery_id)

-- name: take_attempts
create temporary table report_attempt as
select a.attempt_id, a.delivery_id, a.attempt, a.result, a.payload_sha256 as body_sha256, a.recorded_at
from outrider.delivery_attempt a
where a.recorded_at >= %(since)s
  and exists (select from report_delivery d where d.delivery_id = a.delivery_id)

-- name: moment
-- Asked behind what was taken: the commit of all that was seen lies before this place.
select pg_current_wal_insert_lsn()::text, clock_timestamp()

-- name: settled
-- Whether all slots have confirmed a place. NULL where one of them is not there.
select case when count(s.slot_name) = cardinality(%(slots)s::text[])
         then bool_and(s.confirmed_flush_lsn >= %(lsn)s::pg_lsn) end,
       min(s.confirmed_flush_lsn)::text
from pg_replication_slots s
where s.slot_name = any (%(slots)s)

-- name: make_tables
create temporary table report_message (
  topic text, partition integer, log_offset bigint, logged_at timestamptz, delivery_id text, destination_id text,
  event_id text, dispatch_seq integer, attempt_id bigint, attempt integer, result text, body_sha256 bytea, defect text,
  is_attempt boolean
);
create temporary table report_receiver (delivery_id text);
create temporary table report_place (
  topic text, partition integer, is_attempt boolean, read_from bigint, read_to bigint, audited_to bigint,
  -- Of what was admitted before this, messages may be gone by retention.
  kept_since timestamptz
);
create temporary table report_finding (
  kind text, delivery_id text, destination_id text, dispatch_seq integer, attempt integer, place text, detail text
)

-- name: copy_messages
copy report_message (topic, partition, log_offset, logged_at, delivery_id, destination_id, event_id, dispatch_seq, attempt_id,
                     attempt, result, body_sha256, defect, is_attempt) from stdin

-- name: copy_receiver
copy report_receiver (delivery_id) from stdin

-- name: put_place
insert into report_place values (
  %(topic)s, %(partition)s, %(is_attempt)s, %(read_from)s, %(read_to)s, %(audited_to)s,
  coalesce(%(kept_since)s::timestamptz, '-infinity'))

-- name: clear_places
truncate report_place

-- name: analyze
analyze report_delivery, report_outbox, report_attempt, report_message, report_place, report_receiver

-- name: unmatched
-- How much of what was taken the topics lack. Counted to the end, because a look that may end with the first is planned
-- as one that goes through all messages for each row.
select (
  select count(*) from report_outbox o
  where not exists (select from report_message m
                    where not m.is_attempt and m.delivery_id = o.delivery_id and m.dispatch_seq = o.dispatch_seq)
) + (
  select count(*) from report_attempt a
  where not exists (select from report_message m where m.is_attempt and m.attempt_id = a.attempt_id)
)

-- name: message_count
select count(*) from report_message

-- name: find_not_in_topic
-- Rows of the outbox without a message, where a message would still be kept. The settled ones are missing.
insert into report_finding
select case when %(is_settled)s then 'not_in_topic' else 'not_published_yet' end, o.delivery_id, d.destination_id,
       o.dispatch_seq, null, null, 'state ' || d.state
from report_outbox o
join report_delivery d on d.delivery_id = o.delivery_id
where o.created_at >= (select max(kept_since) from report_place where not is_attempt)
  and not exists (select from report_message m
                  where not m.is_attempt and m.delivery_id = o.delivery_id and m.dispatch_seq = o.dispatch_seq)

-- name: find_attempt_not_in_topic
insert into report_finding
select case when %(is_settled)s then 'attempt_not_in_topic' else 'not_published_yet' end, a.delivery_id, d.destination_id,
       null, a.attempt, null, 'attempt_id ' || a.attempt_id
from report_attempt a
join report_delivery d on d.delivery_id = a.delivery_id
where a.recorded_at >= (select max(kept_since) from report_place where is_attempt)
  and not exists (select from report_message m where m.is_attempt and m.attempt_id = a.attempt_id)

-- name: find_no_dispatch
-- In transport by its state, while no witness has its dispatch.
insert into report_finding
select 'no_dispatch', d.delivery_id, d.destination_id, d.dispatch_seq, null, null, 'no row in the outbox, and no message'
from report_delivery d
where d.state = 'enqueued'
  and not exists (select from report_outbox o where o.delivery_id = d.delivery_id and o.dispatch_seq = d.dispatch_seq)
  and not exists (select from report_message m
                  where not m.is_attempt and m.delivery_id = d.delivery_id and m.dispatch_seq = d.dispatch_seq)

-- name: find_not_in_ledger
-- Asked of the ledger as it is now: a message's row was committed before it.
insert into report_finding
select 'not_in_ledger', m.delivery_id, m.destination_id, m.dispatch_seq, null,
       m.topic || '/' || m.partition || '/' || m.log_offset,
       case when n.delivery_id is null then 'unknown delivery' else 'the ledger is at dispatch ' || n.dispatch_seq end
from report_message m
left join report_delivery d on d.delivery_id = m.delivery_id
left join outrider.delivery n on n.delivery_id = m.delivery_id
where not m.is_attempt
  and m.defect is null
  and (d.delivery_id is null or m.dispatch_seq > d.dispatch_seq)
  and (n.delivery_id is null or m.dispatch_seq > n.dispatch_seq)
  and (d.delivery_id is not null or (m.logged_at >= %(since)s and m.logged_at < %(until)s
       and (%(destination_id)s::text is null or m.destination_id = %(destination_id)s)))

-- name: find_attempt_not_in_ledger
-- A rebuild restores a delivery with the number of its attempts; their rows stay lost.
insert into report_finding
select case when exists (select from outrider.replay_item i
                         join outrider.delivery n on n.delivery_id = i.delivery_id and n.attempt >= m.attempt
                         where i.delivery_id = m.delivery_id and i.verdict in ('rebuilt', 'advanced'))
         then 'attempt_rebuilt' else 'attempt_not_in_ledger' end, m.delivery_id, m.destination_id, m.dispatch_seq, m.attempt,
       m.topic || '/' || m.partition || '/' || m.log_offset, 'attempt_id ' || m.attempt_id
from report_message m
left join report_delivery d on d.delivery_id = m.delivery_id
where m.is_attempt
  and m.defect is null
  and m.logged_at >= %(attempts_kept_since)s
  and not exists (select from report_attempt a where a.attempt_id = m.attempt_id)
  and not exists (select from outrider.delivery_attempt a
                  where a.delivery_id = m.delivery_id and a.attempt_id = m.attempt_id)
  and (d.delivery_id is not null or (m.logged_at >= %(since)s and m.logged_at < %(until)s
       and (%(destination_id)s::text is null or m.destination_id = %(destination_id)s)))

-- name: find_duplicates
insert into report_finding
select case when m.is_attempt then 'duplicate_attempt' else 'duplicate_dispatch' end, m.delivery_id, min(d.destination_id),
       m.dispatch_seq, m.attempt, min(m.topic || '/' || m.partition || '/' || m.log_offset), count(*) || ' messages'
from report_message m
join report_delivery d on d.delivery_id = m.delivery_id
where m.defect is null
group by m.is_attempt, m.delivery_id, m.dispatch_seq, m.attempt_id, m.attempt
having count(*) > 1

-- name: find_mismatches
insert into report_finding
select p.kind, m.delivery_id, d.destination_id, m.dispatch_seq, m.attempt,
       m.topic || '/' || m.partition || '/' || m.log_offset, p.detail
from report_message m
join report_delivery d on d.delivery_id = m.delivery_id
left join report_attempt a on m.is_attempt and a.attempt_id = m.attempt_id
cross join lateral (values
  ('identity_mismatch', 'destination ' || m.destination_id, m.destination_id <> d.destination_id),
  ('identity_mismatch', 'event ' || m.event_id, m.event_id <> d.event_id),
  ('identity_mismatch', 'attempt ' || m.attempt || ' ' || m.result || ', in the ledger ' || a.attempt || ' ' || a.result,
   (m.delivery_id, m.attempt, m.result) is distinct from (a.delivery_id, a.attempt, a.result) and a.attempt_id is not null),
  ('body_mismatch', encode(m.body_sha256, 'hex'), m.body_sha256 is distinct from d.body_sha256)
) p(kind, detail, is_found)
where m.defect is null
  and p.is_found

-- name: find_ledger_body_mismatches
insert into report_finding
select 'body_mismatch', a.delivery_id, d.destination_id, null, a.attempt, null, encode(a.body_sha256, 'hex')
from report_attempt a
join report_delivery d on d.delivery_id = a.delivery_id
where a.body_sha256 <> d.body_sha256

-- name: find_broken
insert into report_finding
select case when starts_with(m.defect, 'identity: ') then 'identity_mismatch' else 'broken_message' end, m.delivery_id, m.destination_id, m.dispatch_seq, m.attempt,
       m.topic || '/' || m.partition || '/' || m.log_offset, m.defect
from report_message m
where m.defect is not null
  and m.logged_at >= %(since)s and m.logged_at < %(until)s

-- name: find_no_attempt
-- Succeeded, while no witness has an attempt.
insert into report_finding
select 'no_attempt', d.delivery_id, d.destination_id, d.dispatch_seq, d.attempt, null, 'succeeded without one on record'
from report_delivery d
where d.state = 'succeeded'
  and d.created_at >= %(attempts_kept_since)s
  and not exists (select from report_attempt a where a.delivery_id = d.delivery_id)
  and not exists (select from report_message m where m.is_attempt and m.delivery_id = d.delivery_id)

-- name: find_not_in_audit
-- Messages that the audit's group has passed, and did not record. Those before it are on their way.
insert into report_finding
select case when m.log_offset < p.audited_to then 'not_in_audit' else 'not_audited_yet' end, m.delivery_id, m.destination_id,
       m.dispatch_seq, m.attempt, m.topic || '/' || m.partition || '/' || m.log_offset, null
from report_message m
join report_place p on p.topic = m.topic and p.partition = m.partition
left join report_delivery d on d.delivery_id = m.delivery_id
where m.logged_at >= %(audit_kept_since)s
  and (d.delivery_id is not null
       or (m.logged_at >= %(since)s and m.logged_at < %(until)s and %(destination_id)s::text is null))
  and not exists (select from outrider_audit.record r
                  where r.topic = m.topic and r.partition = m.partition and r.log_offset = m.log_offset
                    and r.logged_at = m.logged_at)

-- name: find_audit_mismatches
insert into report_finding
select 'audit_mismatch', m.delivery_id, m.destination_id, m.dispatch_seq, m.attempt,
       m.topic || '/' || m.partition || '/' || m.log_offset, 'the audit has ' || coalesce(r.delivery_id, 'no delivery')
from report_message m
join report_delivery d on d.delivery_id = m.delivery_id
join outrider_audit.record r
  on r.topic = m.topic and r.partition = m.partition and r.log_offset = m.log_offset and r.logged_at = m.logged_at
where m.defect is null
  and (r.delivery_id, r.dispatch_seq, r.attempt, r.body_sha256)
      is distinct from (m.delivery_id, m.dispatch_seq, m.attempt, m.body_sha256)

-- name: find_only_in_audit
insert into report_finding
select 'only_in_audit', r.delivery_id, r.destination_id, r.dispatch_seq, r.attempt,
       r.topic || '/' || r.partition || '/' || r.log_offset, 'the topic does not hold it'
from outrider_audit.record r
join report_place p on p.topic = r.topic and p.partition = r.partition
join report_delivery d on d.delivery_id = r.delivery_id
where r.log_offset >= p.read_from and r.log_offset < p.read_to
  and r.logged_at >= %(since)s
  and not exists (select from report_message m
                  where m.topic = r.topic and m.partition = r.partition and m.log_offset = r.log_offset)

-- name: find_at_receiver
insert into report_finding
select 'not_at_receiver', d.delivery_id, d.destination_id, d.dispatch_seq, d.attempt, null, 'succeeded'
from report_delivery d
where d.state = 'succeeded'
  and not exists (select from report_receiver r where r.delivery_id = d.delivery_id)
union all
select 'receiver_ahead', d.delivery_id, d.destination_id, d.dispatch_seq, d.attempt, null, 'state ' || d.state
from report_delivery d
where d.state <> 'succeeded'
  and exists (select from report_receiver r where r.delivery_id = d.delivery_id)
union all
select 'unknown_at_receiver', r.delivery_id, null, null, null, null, 'no delivery of this id'
from report_receiver r
where not exists (select from outrider.delivery d where d.delivery_id = r.delivery_id)
union all
select 'receiver_duplicate', r.delivery_id, null, null, null, null, count(*) || ' times'
from report_receiver r
group by r.delivery_id
having count(*) > 1

-- name: find_audited
create temporary table report_audited as
select distinct r.delivery_id
from outrider_audit.record r
where r.attempt is null
  and r.logged_at >= %(since)s
  and exists (select from report_delivery d where d.delivery_id = r.delivery_id)

-- name: counts
select b.bucket, b.destination_id, sum(b.rows)::bigint as admitted, sum(b.in_topic)::bigint as in_topic,
       sum(b.attempted)::bigint as attempted, coalesce(sum(b.rows) filter (where b.state = 'succeeded'), 0)::bigint as succeeded,
       coalesce(sum(b.rows) filter (where b.state = 'dead'), 0)::bigint as dead,
       coalesce(sum(b.rows) filter (where b.waiting is not null), 0)::bigint as waiting,
       coalesce(jsonb_object_agg(b.waiting, b.rows) filter (where b.waiting is not null), '{}') as waiting_by_reason,
       sum(b.in_audit)::bigint as in_audit
from (
  select d.bucket, d.destination_id, d.state, d.waiting, count(*) as rows, count(m.delivery_id) as in_topic,
         count(a.delivery_id) as attempted, count(u.delivery_id) as in_audit
  from report_delivery d
  left join (select distinct delivery_id from report_message where not is_attempt) m on m.delivery_id = d.delivery_id
  left join (select delivery_id from report_attempt
             union select delivery_id from report_message where is_attempt) a on a.delivery_id = d.delivery_id
  left join report_audited u on u.delivery_id = d.delivery_id
  group by d.bucket, d.destination_id, d.state, d.waiting
) b
group by b.bucket, b.destination_id
order by b.bucket, b.destination_id

-- name: finding_counts
select f.kind, count(*) from report_finding f group by f.kind order by f.kind

-- name: findings
select f.kind, f.delivery_id, f.destination_id, f.dispatch_seq, f.attempt, f.place, f.detail
from report_finding f
order by f.kind, f.delivery_id, f.dispatch_seq, f.attempt, f.place

-- name: findings_of_kind
select f.kind, f.delivery_id, f.destination_id, f.dispatch_seq, f.attempt, f.place, f.detail
from report_finding f
where f.kind = %(kind)s
order by f.delivery_id, f.dispatch_seq, f.attempt, f.place
limit %(limit)s

-- name: repairable
-- Deliveries that wait, whose current dispatch is in no topic; and those that succeeded, with the dispatch by which they had.
create temporary table report_repair as
select distinct f.delivery_id, f.kind, f.dispatch_seq
from report_finding f
join outrider.delivery d on d.delivery_id = f.delivery_id and d.dispatch_seq = f.dispatch_seq
where (f.kind in ('not_in_topic', 'no_dispatch') and d.state = 'enqueued')
   or (f.kind = 'not_at_receiver' and d.state = 'succeeded')

-- name: repair_counts
select r.kind, count(*) from report_repair r group by r.kind order by r.kind

-- name: repair_page
select r.delivery_id, r.dispatch_seq
from report_repair r
where r.kind = %(kind)s and r.delivery_id > %(after_id)s
order by r.delivery_id
limit %(page_rows)s
