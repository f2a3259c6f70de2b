-- The transitions that a worker makes. Each works on many deliveries at once, carries its condition, and
-- takes times from the database's clock.
--
-- Where a delivery is looked up by its id, its state is compared as `d.state || ''`: that leaves the primary key as the
-- only index that fits. See the note at the indexes in migration 0002.

-- name: lock_pace
-- Claims on one destination take turns from here to their commit, over all workers. The claim is a statement of
-- its own after this one, so that its snapshot has what the turns before it did; which destinations it may claim for goes
-- to it in a setting of the transaction. One that another worker is at is left out: that worker may hang, and the others
-- of this batch must not wait for it.
with locked as (
  select p.destination_id
  from outrider.destination_pace p
  where p.destination_id in (
    select d.destination_id from outrider.delivery d where d.delivery_id = any (%(delivery_ids)s)
  )
  for no key update skip locked
)
select set_config('outrider.claiming', coalesce(jsonb_agg(l.destination_id), '[]')::text, true) from locked l

-- name: claim
-- enqueued -> leased, as far as the destination's tokens and free places reach, in the order of the request. While a
-- destination is held (disabled, paused, asked for a pause, breaker open) nothing starts; once an open breaker's time is
-- over, one claim at a time probes.
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
  select x.destination_id, x.timeout_seconds, x.start_rate_per_second * r.share as rate,
         outrider.tokens_at(p.tokens, p.refilled_at, x.start_rate_per_second, x.burst, r.share, statement_timestamp())
           as tokens,
         least(x.concurrency - (select count(*) from outrider.delivery l
                                where l.destination_id = x.destination_id and l.state = 'leased'),
               case when p.open_until is not null then 1 end) as free_places,
         case when not x.enabled then 'disabled'
              when x.paused_at is not null then 'paused'
              when p.paused_until > statement_timestamp() then 'throttled'
              when p.open_until > statement_timestamp() or p.probe_until > statement_timestamp() then 'open'
         end as hold,
         p.open_until is not null as is_probing,
         extract(epoch from case when p.paused_until > statement_timestamp() then p.paused_until
                                 else greatest(p.open_until, p.probe_until) end
                            - statement_timestamp())::double precision as hold_seconds
  from outrider.destination x
  join outrider.destination_pace p on p.destination_id = x.destination_id
  cross join lateral outrider.rate_share(p.share_at_slowing, p.slowed_at, statement_timestamp()) as r(share)
  where x.destination_id in (select f.destination_id from found f where f.is_current)
    and x.destination_id in (select jsonb_array_elements_text(current_setting('outrider.claiming')::jsonb))
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
      dispatches_refused = 0,
      waiting_reason = null
  from ranked r
  join pace p on p.destination_id = r.destination_id
  where d.delivery_id = r.delivery_id
    and d.state || '' = 'enqueued'
    and d.dispatch_seq = r.dispatch_seq
    and p.hold is null
    and r.turn <= least(floor(p.tokens), p.free_places)
  returning d.delivery_id, d.destination_id, d.attempt, d.unauthorized, d.event_id, r.body_sha256, d.leased_at,
            p.timeout_seconds + %(lease_margin_seconds)s as lease_seconds,
            extract(epoch from statement_timestamp() - greatest(d.created_at, d.deliver_at))::double precision
              as age_seconds
), spent as (
  update outrider.destination_pace s
  set tokens = p.tokens - c.starts,
      refilled_at = statement_timestamp(),
      probe_until = case when p.is_probing then c.lease_until end
  from (
    select c.destination_id, count(*) as starts,
           max(c.leased_at + make_interval(secs => c.lease_seconds)) as lease_until
    from claimed c
    group by c.destination_id
  ) c
  join pace p on p.destination_id = c.destination_id
  where s.destination_id = c.destination_id
)
select f.place,
       case
         when c.delivery_id is not null then 'claimed'
         when f.is_early then 'early'
         when not f.is_current then 'stale'
         when p.destination_id is null then 'busy'
         when p.hold is not null then p.hold
         when r.turn > floor(p.tokens) then 'paced'
         when r.turn > p.free_places and p.is_probing then 'open'
         when r.turn > p.free_places then 'busy'
         else 'stale'
       end as verdict,
       case
         when p.hold is not null then p.hold_seconds
         when p.is_probing then c.lease_seconds
         else greatest(0, (r.turn - p.tokens) / p.rate)
       end as wait_seconds,
       c.destination_id, c.attempt, c.unauthorized, c.leased_at, c.lease_seconds, c.age_seconds,
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
    %(started_at)s::timestamptz[], %(durations_seconds)s::double precision[], %(leased_at)s::timestamptz[],
    %(signs)s::text[], %(slows)s::boolean[], %(pauses_seconds)s::double precision[], %(response_headers)s::text[],
    %(dns_seconds)s::double precision[], %(connect_seconds)s::double precision[], %(tls_seconds)s::double precision[],
    %(first_byte_seconds)s::double precision[]
  ) with ordinality as r (
    delivery_id, attempt, dispatch_seq, state, delay_seconds, waiting_reason, outcome, status, ambiguous, error,
    response_excerpt, retry_after_seconds, key_ids, payload_sha256, started_at, duration_seconds, leased_at, sign, slows,
    pause_seconds, response_headers, dns_seconds, connect_seconds, tls_seconds, first_byte_seconds, place
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
      unauthorized = d.unauthorized + (r.outcome = 'unauthorized')::integer,
      last_outcome = r.outcome,
      last_status = r.status,
      last_error = r.error
  from result r
  where d.delivery_id = r.delivery_id
    and d.state || '' = 'leased'
    and d.attempt = r.attempt
    and r.state in ('succeeded', 'pending', 'dead')
  returning r.place, d.next_attempt_at, d.destination_id
), told as (
  -- What these answers say of each receiver.
  select m.destination_id,
         coalesce(bool_or(r.sign = 'works'), false) as works,
         count(*) filter (where r.sign = 'fails') as failures,
         max(r.leased_at) filter (where r.sign = 'fails') as failed_at,
         max(r.leased_at) filter (where r.slows) as slow_at,
         max(r.pause_seconds) as pause_seconds,
         max(r.leased_at) as newest_at
  from moved m
  join result r on r.place = m.place
  group by m.destination_id
), changing as (
  -- A receiver that is well costs no write. In order, so that two settlements do not wait for each other in a circle.
  select p.destination_id
  from told t
  join outrider.destination_pace p on p.destination_id = t.destination_id
  where (t.works and (p.failures > 0 or p.open_until is not null))
     or (t.failures > 0 and not t.works)
     or t.slow_at is not null
     or t.pause_seconds > 0
     or p.probe_until is not null
  order by p.destination_id
  for no key update of p
), judged as (
  update outrider.destination_pace s
  set -- Answers to requests from before the last slowing are that slowing's, and not one more.
      share_at_slowing = case
        when t.slow_at > coalesce(s.slowed_at, '-infinity')
        then greatest(0.02, 0.5 * outrider.rate_share(s.share_at_slowing, s.slowed_at, statement_timestamp()))
        else s.share_at_slowing end,
      slowed_at = case when t.slow_at > coalesce(s.slowed_at, '-infinity') then statement_timestamp() else s.slowed_at end,
      paused_until = greatest(s.paused_until, statement_timestamp() + make_interval(secs => t.pause_seconds)),
      failures = case when t.works then 0 else s.failures + t.failures end,
      openings = case
        when t.works then 0
        when outrider.breaker_opens(s.failures, s.open_until, t.failures, t.failed_at, %(breaker_failures)s)
        then s.openings + 1
        else s.openings end,
      open_until = case
        when t.works then null
        when outrider.breaker_opens(s.failures, s.open_until, t.failures, t.failed_at, %(breaker_failures)s)
        then statement_timestamp() + make_interval(
          secs => least(%(breaker_open_seconds_max)s, %(breaker_open_seconds_first)s * 2 ^ least(s.openings, 30)))
        else s.open_until end,
      -- The probe has ended, whatever it said: the next may go.
      probe_until = case when t.works or t.newest_at >= s.open_until then null else s.probe_until end
  from told t
  join changing c on c.destination_id = t.destination_id
  where s.destination_id = t.destination_id
), logged as (
  insert into outrider.delivery_attempt (
    delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, worker_id, result, outcome, status,
    ambiguous, error, response_excerpt, retry_after_seconds, next_attempt_at, key_ids, payload_sha256, started_at,
    duration_seconds, response_headers, dns_seconds, connect_seconds, tls_seconds, first_byte_seconds)
  select r.delivery_id, d.event_id, e.event_type, d.destination_id, r.attempt, r.dispatch_seq, %(worker_id)s,
         case when m.place is null then 'late' when r.state = 'pending' then 'retry' else r.state end,
         r.outcome, r.status, r.ambiguous, r.error, r.response_excerpt, r.retry_after_seconds, m.next_attempt_at,
         string_to_array(r.key_ids, ' '), r.payload_sha256, r.started_at, r.duration_seconds,
         r.response_headers::jsonb, r.dns_seconds, r.connect_seconds, r.tls_seconds, r.first_byte_seconds
  from result r
  join outrider.delivery d on d.delivery_id = r.delivery_id
  join outrider.event e on e.event_id = d.event_id
  left join moved m on m.place = r.place
  order by r.place
)
select r.place, m.place is not null as counted
from result r
left join moved m on m.place = r.place

-- name: disable_gone
-- A receiver that answered 410 is called no more. Only by an attempt that still counts, at the URL that still stands.
with switched as (
  update outrider.destination x
  set enabled = false,
      disabled_reason = %(reason)s,
      updated_at = statement_timestamp()
  where x.destination_id = %(destination_id)s
    and x.enabled
    and x.url = %(url)s
    and exists (select from outrider.delivery d
                where d.delivery_id = %(delivery_id)s and d.state || '' = 'leased' and d.attempt = %(attempt)s)
  returning x.destination_id
)
insert into outrider.run (kind, woken_by, operator, reason, counts, finished_at)
select 'destination.disable', 'delivery', %(worker_id)s, %(reason)s,
       jsonb_build_object('destination_id', s.destination_id, 'delivery_id', %(delivery_id)s::text,
                          'attempt', %(attempt)s::integer), clock_timestamp()
from switched s
returning run_id

-- name: park
-- enqueued -> pending without an attempt, where the message is still the current one. A destination that had no room is
-- marked, so that admission holds back what comes next; see hold_back in migration 0010.
with parked as (
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
  returning d.destination_id, d.waiting_reason
)
update outrider.destination x
set backlogged_until = statement_timestamp() + interval '10 s'
where x.destination_id in (
  select m.destination_id
  from outrider.destination m
  where m.destination_id in (
      select p.destination_id from parked p where p.waiting_reason not in ('destination_disabled', 'no_secret'))
    and coalesce(m.backlogged_until, '-infinity') < statement_timestamp() + interval '5 s'
  -- Whoever holds the row marks it too, or changes it: not worth a wait.
  for no key update skip locked
)

-- name: refuse
-- enqueued -> pending, or -> dead when it was refused too often: the worker could not handle the current message. No
-- attempt is spent, as nothing was sent.
update outrider.delivery d
set state = case when d.dispatches_refused + 1 < %(refusals_max)s then 'pending' else 'dead' end,
    next_attempt_at = case when d.dispatches_refused + 1 < %(refusals_max)s
      then statement_timestamp() + make_interval(secs => %(delay_seconds)s * 2 ^ d.dispatches_refused) end,
    settled_at = case when d.dispatches_refused + 1 >= %(refusals_max)s then statement_timestamp() end,
    lost_after = null,
    dispatches_lost = 0,
    dispatches_refused = d.dispatches_refused + 1,
    waiting_reason = case when d.dispatches_refused + 1 < %(refusals_max)s then 'quarantined' end,
    last_outcome = 'quarantined',
    last_error = %(error)s
where d.delivery_id = %(delivery_id)s
  and d.state || '' = 'enqueued'
  and d.dispatch_seq = %(dispatch_seq)s
returning d.state
