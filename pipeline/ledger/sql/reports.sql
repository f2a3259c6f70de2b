-- What the ledger says about itself. No statement here changes a row.

-- name: oldest_due_seconds
-- One look into delivery_due for each destination, however many rows wait.
select coalesce(max(extract(epoch from statement_timestamp() - first_due.next_attempt_at)), 0)::double precision
from outrider.destination x
cross join lateral (
  select d.next_attempt_at
  from outrider.delivery d
  where d.destination_id = x.destination_id
    and d.state = 'pending'
    and d.next_attempt_at <= statement_timestamp()
  order by d.next_attempt_at
  limit 1
) first_due
where x.enabled

-- name: waiting_by_reason
-- Of each state no more than so many rows are read, in the order of its index.
select w.reason, count(*) as rows
from (
  (select coalesce(d.waiting_reason, 'due') as reason from outrider.delivery d where d.state = 'pending'
   order by d.destination_id, d.next_attempt_at limit %(rows_max)s)
  union all
  (select 'in_transport' from outrider.delivery d where d.state = 'enqueued'
   order by d.destination_id, d.lost_after limit %(rows_max)s)
  union all
  (select 'in_flight' from outrider.delivery d where d.state = 'leased'
   order by d.destination_id, d.lease_until limit %(rows_max)s)
) w
group by w.reason

-- name: destination_exists
select exists (select from outrider.destination where destination_id = %(destination_id)s)

-- name: delivery_columns
-- The common part of the lists and of a single delivery.
select d.delivery_id, d.event_id, e.event_type, d.destination_id, x.enabled as destination_enabled,
       x.paused_at is not null as destination_paused, d.state, d.attempt,
       d.dispatch_seq, d.dispatches_lost, d.deliver_at, d.next_attempt_at, d.lost_after, d.lease_until, d.lease_owner,
       d.waiting_reason, d.last_outcome, d.last_status, d.last_error, d.created_at, d.settled_at
from outrider.delivery d
join outrider.event e on e.event_id = d.event_id
join outrider.destination x on x.destination_id = d.destination_id

-- name: waiting
-- Reads delivery_unsettled in order.
where d.settled_at is null
  and d.state = any (%(states)s)
  and (d.created_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.created_at, d.delivery_id
limit %(limit)s

-- name: waiting_of_destination
-- Reads the three indexes by destination and state, or delivery_by_destination where much waits.
where ((d.destination_id = %(destination_id)s and d.state = 'pending')
       or (d.destination_id = %(destination_id)s and d.state = 'enqueued')
       or (d.destination_id = %(destination_id)s and d.state = 'leased'))
  and d.destination_id = %(destination_id)s
  and d.state = any (%(states)s)
  and (d.created_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.created_at, d.delivery_id
limit %(limit)s

-- name: dead
-- Reads delivery_dead in order, which is that of their deaths.
where d.state = 'dead'
  and (d.settled_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.settled_at, d.delivery_id
limit %(limit)s

-- name: dead_of_destination
where d.state = 'dead'
  and d.destination_id = %(destination_id)s
  and (d.settled_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.settled_at, d.delivery_id
limit %(limit)s

-- name: all_of_destination
-- Reads delivery_by_destination in order.
where d.destination_id = %(destination_id)s
  and d.state = any (%(states)s)
  and (d.created_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.created_at, d.delivery_id
limit %(limit)s

-- name: one
where d.delivery_id = %(delivery_id)s

-- name: event_of
select e.event_id, e.event_type, e.content_type, octet_length(e.payload) as payload_bytes, e.payload_removed_at,
       encode(e.payload_sha256, 'hex') as payload_sha256, e.headers, e.admitted_by, e.admitted_at
from outrider.event e
where e.event_id = %(event_id)s

-- name: dispatches_of
select o.message_id, o.dispatch_seq, o.reason, o.created_at
from outrider.dispatch_outbox o
where o.delivery_id = %(delivery_id)s
order by o.dispatch_seq desc
limit %(limit)s

-- name: attempts_of
select a.attempt, a.dispatch_seq, a.worker_id, a.result, a.outcome, a.status, a.ambiguous, a.error,
       a.response_headers, a.response_excerpt, a.retry_after_seconds, a.next_attempt_at, a.key_ids, a.started_at,
       a.duration_seconds, a.dns_seconds, a.connect_seconds, a.tls_seconds, a.first_byte_seconds
from outrider.delivery_attempt a
where a.delivery_id = %(delivery_id)s
order by a.attempt desc, a.recorded_at desc
limit %(limit)s

-- name: last_answers
-- The last attempt of each that got a status.
select distinct on (a.delivery_id) a.delivery_id, a.attempt, a.dispatch_seq, a.worker_id, a.result, a.outcome, a.status,
       a.ambiguous, a.error, a.response_headers, a.response_excerpt, a.retry_after_seconds, a.next_attempt_at, a.key_ids,
       a.started_at, a.duration_seconds, a.dns_seconds, a.connect_seconds, a.tls_seconds, a.first_byte_seconds
from outrider.delivery_attempt a
where a.delivery_id = any (%(delivery_ids)s)
  and a.status is not null
order by a.delivery_id, a.attempt desc, a.recorded_at desc

-- name: counts_by_state
-- States that wait, and dead, are counted in their indexes. Succeeded deliveries are counted while the table is small,
-- and estimated from its statistics after that (is_estimate).
with size as (
  select reltuples::bigint as rows, reltuples > %(exact_rows)s as is_large
  from pg_class where oid = 'outrider.delivery'::regclass
), counted as (
  select (select count(*) from outrider.delivery where state = 'pending') as pending,
         (select count(*) from outrider.delivery where state = 'enqueued') as enqueued,
         (select count(*) from outrider.delivery where state = 'leased') as leased,
         (select count(*) from outrider.delivery where state = 'dead') as dead
)
select c.pending, c.enqueued, c.leased, c.dead, s.is_large as is_estimate,
       case when s.is_large then greatest(0, s.rows - c.pending - c.enqueued - c.leased - c.dead)
            else (select count(*) from outrider.delivery where state = 'succeeded') end as succeeded
from size s
cross join counted c
