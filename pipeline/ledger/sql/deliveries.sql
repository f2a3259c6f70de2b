-- The transitions that a worker makes. Each works on many deliveries at once, carries its condition, and
-- takes times from the database's clock.
--
-- Where a delivery is looked up by its id, its state is compared as `d.state || ''`: that leaves the primary key as the
-- only index that fits. See the note at the indexes in migration 0002.

-- name: lock_pace
-- Claims on one destination take turns from here to their commit, over all workers. The claim is a statement of
-- its own after this one, so that its snapshot has what the turns before it did.
select p.destination_id
from outrider.destination_pace p
where p.destination_id in (
  select d.destination_id from outrider.delivery d where d.delivery_id = any (%(delivery_ids)s)
)
order by p.destination_id
for no key update

-- name: claim
-- enqueued -> leased, as far as the destination's tokens and free places reach, in the order of the request.
with wanted as (
  select distinct on (w.delivery_id) w.*
  from unnest(%(delivery_ids)s::text[], %(dispatch_seqs)s::integer[], %(body_sha256s)s::bytea[])
    with ordinality as w (delivery_id, dispatch_seq, body_sha256, place)
  order by w.delivery_id, w.dispatch_seq desc, w.place
), found as (
  select w.*, d.destination_id,
         coalesce(d.state || '' = 'enqueued' and d.dispatch_seq = w.dispatch_seq, false) as is_current,
         -- The stream can be faster than the visibility of its commit: what the message speaks of is still to come.
         coalesce(d.dispatch_seq < w.dispatch_seq, true) as is_early
  from wanted w
  left join outrider.delivery d on d.delivery_id = w.delivery_id
), pace as materialized (
  select x.destination_id, x.enabled, x.start_rate_per_second, x.timeout_seconds,
         least(x.burst, p.tokens + x.start_rate_per_second
               * greatest(0, extract(epoch from statement_timestamp() - p.refilled_at)::double precision)) as tokens,
         x.concurrency - (select count(*) from outrider.delivery l
                          where l.destination_id = x.destination_id and l.state = 'leased') as free_places
  from outrider.destination x
  join outrider.destination_pace p on p.destination_id = x.destination_id
  where x.destination_id in (select f.destination_id from found f where f.is_current)
), ranked as (
  select f.*, row_number() over (partition by f.destination_id order by f.place) as turn
  from found f
  where f.is_current
), claimed as (
  update outrider.delivery d
  set state = 'leased',
      attempt = d.attempt + 1,
      leased_at = statement_timestamp(),
      lease_until = statement_timestamp()
        + make_interval(secs => p.timeout_seconds + %(lease_margin_seconds)s),
      lease_owner = %(worker_id)s,
      lost_after = null,
      dispatches_lost = 0,
      waiting_reason = null
  from ranked r
  join pace p on p.destination_id = r.destination_id
  where d.delivery_id = r.delivery_id
    and d.state || '' = 'enqueued'
    and d.dispatch_seq = r.dispatch_seq
    and p.enabled
    and r.turn <= least(floor(p.tokens), p.free_places)
  returning d.delivery_id, d.destination_id, d.attempt, d.event_id, r.body_sha256,
            p.timeout_seconds + %(lease_margin_seconds)s as lease_seconds,
            extract(epoch from statement_timestamp() - greatest(d.created_at, d.deliver_at))::double precision
              as age_seconds
), spent as (
  update outrider.destination_pace s
  set tokens = p.tokens - (select count(*) from claimed c where c.destination_id = p.destination_id),
      refilled_at = statement_timestamp()
  from pace p
  where s.destination_id = p.destination_id
)
select f.place,
       case
         when c.delivery_id is not null then 'claimed'
         when f.is_early then 'early'
         when p.destination_id is null then 'stale'
         when not p.enabled then 'disabled'
         when r.turn > floor(p.tokens) then 'paced'
         when r.turn > p.free_places then 'busy'
         else 'stale'
       end as verdict,
       greatest(0, (r.turn - p.tokens) / p.start_rate_per_second) as wait_seconds,
       c.destination_id, c.attempt, c.lease_seconds, c.age_seconds,
       e.event_id, e.event_type, e.content_type, e.headers, e.payload_sha256,
       case when e.payload_sha256 <> c.body_sha256 then e.payload end as payload
from found f
left join ranked r on r.delivery_id = f.delivery_id
left join pace p on p.destination_id = r.destination_id
left join claimed c on c.delivery_id = f.delivery_id
left join outrider.event e on e.event_id = c.event_id

-- name: settle
-- leased -> succeeded, pending or dead, under the attempt that was claimed, and its attempt row. A result whose
-- attempt is no longer current is written as late and moves nothing.
with result as (
  select *
  from unnest(
    %(delivery_ids)s::text[], %(attempts)s::integer[], %(dispatch_seqs)s::integer[], %(states)s::text[],
    %(delays_seconds)s::double precision[], %(waiting_reasons)s::text[], %(outcomes)s::text[],
    %(statuses)s::integer[], %(ambiguous)s::boolean[], %(errors)s::text[], %(response_excerpts)s::bytea[],
    %(retry_afters_seconds)s::double precision[], %(key_ids)s::text[], %(payload_sha256s)s::bytea[],
    %(started_at)s::timestamptz[], %(durations_seconds)s::double precision[]
  ) with ordinality as r (
    delivery_id, attempt, dispatch_seq, state, delay_seconds, waiting_reason, outcome, status, ambiguous, error,
    response_excerpt, retry_after_seconds, key_ids, payload_sha256, started_at, duration_seconds, place
  )
), moved as (
  update outrider.delivery d
  set state = r.state,
      next_attempt_at = case when r.state = 'pending'
                             then statement_timestamp() + make_interval(secs => r.delay_seconds) end,
      settled_at = case when r.state in ('succeeded', 'dead') then statement_timestamp() end,
      leased_at = null,
      lease_until = null,
      lease_owner = null,
      waiting_reason = r.waiting_reason,
      last_outcome = r.outcome,
      last_status = r.status,
      last_error = r.error
  from result r
  where d.delivery_id = r.delivery_id
    and d.state || '' = 'leased'
    and d.attempt = r.attempt
    and r.state in ('succeeded', 'pending', 'dead')
  returning r.place, d.next_attempt_at
), logged as (
  insert into outrider.delivery_attempt (
    delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, worker_id, result, outcome, status,
    ambiguous, error, response_excerpt, retry_after_seconds, next_attempt_at, key_ids, payload_sha256, started_at,
    duration_seconds)
  select r.delivery_id, d.event_id, e.event_type, d.destination_id, r.attempt, r.dispatch_seq, %(worker_id)s,
         case when m.place is null then 'late' when r.state = 'pending' then 'retry' else r.state end,
         r.outcome, r.status, r.ambiguous, r.error, r.response_excerpt, r.retry_after_seconds, m.next_attempt_at,
         string_to_array(r.key_ids, ' '), r.payload_sha256, r.started_at, r.duration_seconds
  from result r
  join outrider.delivery d on d.delivery_id = r.delivery_id
  join outrider.event e on e.event_id = d.event_id
  left join moved m on m.place = r.place
  order by r.place
)
select r.place, m.place is not null as counted
from result r
left join moved m on m.place = r.place

-- name: park
-- enqueued -> pending without an attempt, where the message is still the current one.
update outrider.delivery d
set state = 'pending',
    next_attempt_at = statement_timestamp() + make_interval(secs => p.delay_seconds),
    lost_after = null,
    dispatches_lost = 0,
    waiting_reason = p.reason
from unnest(%(delivery_ids)s::text[], %(dispatch_seqs)s::integer[], %(reasons)s::text[],
            %(delays_seconds)s::double precision[]) as p (delivery_id, dispatch_seq, reason, delay_seconds)
where d.delivery_id = p.delivery_id
  and d.state || '' = 'enqueued'
  and d.dispatch_seq = p.dispatch_seq
