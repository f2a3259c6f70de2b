-- What the HTTP API asks of the ledger.

-- name: admit_many
select r.place, r.delivery_id, r.destination_id, r.created, r.state, r.refusal, r.message, r.hint
from outrider.admit_many(%(events)s::jsonb, %(payloads)b::bytea[]) r
order by r.place, r.destination_id

-- name: event_columns
-- The common part of the list and of a single event. Payloads are not shown.
select e.event_id, e.event_type, e.content_type, encode(e.payload_sha256, 'hex') as payload_sha256, e.headers,
       e.admitted_by, e.admitted_at
from outrider.event e

-- name: event
where e.event_id = %(event_id)s

-- name: events
-- Reads event_by_time backwards.
where (e.admitted_at, e.event_id) < (%(before_time)s, %(before_id)s)
order by e.admitted_at desc, e.event_id desc
limit %(limit)s

-- name: deliveries_of_event
-- Goes behind reports.delivery_columns.
where d.event_id = %(event_id)s
  and d.destination_id > %(after_id)s
order by d.destination_id
limit %(limit)s

-- name: attempts
-- Without what the receiver answered, which is for operators alone.
select a.attempt, a.dispatch_seq, a.result, a.outcome, a.status, a.ambiguous, a.error, a.retry_after_seconds,
       a.next_attempt_at, a.started_at, a.duration_seconds
from outrider.delivery_attempt a
where a.delivery_id = %(delivery_id)s
order by a.attempt desc, a.recorded_at desc
limit %(limit)s

-- name: destinations
select x.destination_id, x.url, x.enabled, x.disabled_reason, x.start_rate_per_second, x.burst, x.concurrency,
       x.timeout_seconds, x.retry_first_delay_seconds, x.retry_factor, x.retry_max_delay_seconds,
       x.retry_max_attempts, x.retry_max_age_seconds, x.created_at, x.updated_at,
       array(select s.event_type from outrider.subscription s
             where s.destination_id = x.destination_id order by s.event_type) as subscriptions
from outrider.destination x
where x.destination_id > %(after_id)s
order by x.destination_id
limit %(limit)s

-- name: destination
select x.destination_id, x.url, x.enabled, x.disabled_reason, x.start_rate_per_second, x.burst, x.concurrency,
       x.timeout_seconds, x.retry_first_delay_seconds, x.retry_factor, x.retry_max_delay_seconds,
       x.retry_max_attempts, x.retry_max_age_seconds, x.created_at, x.updated_at,
       array(select s.event_type from outrider.subscription s
             where s.destination_id = x.destination_id order by s.event_type) as subscriptions
from outrider.destination x
where x.destination_id = %(destination_id)s
