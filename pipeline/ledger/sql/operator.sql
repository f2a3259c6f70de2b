-- What operators change, each time with the run that records it in the same transaction.

-- name: record_run
-- An act that is over when it commits.
insert into outrider.run (kind, woken_by, operator, reason, counts, finished_at)
values (%(kind)s, 'operator', %(operator)s, %(reason)s, %(counts)s, clock_timestamp())
returning run_id

-- name: wake_reconciler
select pg_notify('outrider_wakeup', '')

-- name: add_destination
-- With the schema's defaults; set_destination gives it the rest.
insert into outrider.destination (destination_id, url)
values (%(destination_id)s, %(url)s)
on conflict do nothing
returning destination_id

-- name: lock_destination
select url, enabled, allowed_networks::text[] as allowed_networks
from outrider.destination
where destination_id = %(destination_id)s
for no key update

-- name: set_destination
-- NULL leaves a setting as it is.
update outrider.destination
set url = coalesce(%(url)s, url),
    start_rate_per_second = coalesce(%(start_rate_per_second)s, start_rate_per_second),
    burst = coalesce(%(burst)s, burst),
    concurrency = coalesce(%(concurrency)s, concurrency),
    timeout_seconds = coalesce(%(timeout_seconds)s, timeout_seconds),
    retry_first_delay_seconds = coalesce(%(retry_first_delay_seconds)s, retry_first_delay_seconds),
    retry_factor = coalesce(%(retry_factor)s, retry_factor),
    retry_max_delay_seconds = coalesce(%(retry_max_delay_seconds)s, retry_max_delay_seconds),
    retry_max_attempts = coalesce(%(retry_max_attempts)s, retry_max_attempts),
    retry_max_age_seconds = coalesce(%(retry_max_age_seconds)s, retry_max_age_seconds),
    allowed_networks = coalesce(%(allowed_networks)s::text[]::cidr[], allowed_networks),
    answer_rules = coalesce(%(answer_rules)s::jsonb, answer_rules),
    retry_delays_seconds = nullif(coalesce(%(retry_delays_seconds)s::double precision[], retry_delays_seconds), '{}'),
    unauthorized_delays_seconds =
      coalesce(%(unauthorized_delays_seconds)s::double precision[], unauthorized_delays_seconds),
    static_headers = coalesce(%(static_headers)s::jsonb, static_headers),
    updated_at = clock_timestamp()
where destination_id = %(destination_id)s

-- name: switch_destination
update outrider.destination
set enabled = %(enabled)s,
    disabled_reason = case when %(enabled)s then null else %(reason)s end,
    updated_at = clock_timestamp()
where destination_id = %(destination_id)s
  and enabled <> %(enabled)s
returning destination_id

-- name: pause_destination
-- The first reason stands.
update outrider.destination
set paused_at = clock_timestamp(),
    paused_reason = %(reason)s,
    updated_at = clock_timestamp()
where destination_id = %(destination_id)s
  and paused_at is null
returning destination_id

-- name: resume_destination
-- Ends what holds it, whoever began that: an operator's pause, a Retry-After, an open breaker.
with held as (
  select x.destination_id
  from outrider.destination x
  join outrider.destination_pace p on p.destination_id = x.destination_id
  where x.destination_id = %(destination_id)s
    and (x.paused_at is not null or p.paused_until > statement_timestamp() or p.open_until is not null)
), resumed as (
  update outrider.destination x
  set paused_at = null, paused_reason = null, updated_at = clock_timestamp()
  from held h
  where x.destination_id = h.destination_id and x.paused_at is not null
), freed as (
  update outrider.destination_pace p
  set paused_until = null, failures = 0, openings = 0, open_until = null, probe_until = null
  from held h
  where p.destination_id = h.destination_id
)
select destination_id from held

-- name: pace_of_destination
-- What is in force now. The breaker: closed, open, or half-open, when its time is over and one delivery probes.
select x.start_rate_per_second * r.share as rate_in_force,
       greatest(1, floor(x.burst * r.share))::integer as burst_in_force,
       r.share as rate_share,
       outrider.tokens_at(p.tokens, p.refilled_at, x.start_rate_per_second, x.burst, r.share, statement_timestamp()) as tokens,
       p.slowed_at,
       case when p.paused_until > statement_timestamp() then p.paused_until end as throttled_until,
       case when p.open_until is null then 'closed'
            when p.open_until > statement_timestamp() then 'open'
            else 'half_open' end as breaker,
       p.failures as failures_in_a_row,
       p.open_until as breaker_open_until,
       case when p.probe_until > statement_timestamp() then p.probe_until end as probe_until,
       case when x.backlogged_until > statement_timestamp() then x.backlogged_until end as backlogged_until
from outrider.destination x
join outrider.destination_pace p on p.destination_id = x.destination_id
cross join lateral outrider.rate_share(p.share_at_slowing, p.slowed_at, statement_timestamp()) as r(share)
where x.destination_id = %(destination_id)s

-- name: subscribe
insert into outrider.subscription (destination_id, event_type)
select %(destination_id)s, t from unnest(%(event_types)s::text[]) as t
on conflict do nothing

-- name: unsubscribe
delete from outrider.subscription
where destination_id = %(destination_id)s
  and event_type = any (%(event_types)s)

-- name: retire_secrets
-- The current secret of a scheme goes on signing, beside the next one, until then.
update outrider.destination_secret
set valid_until = statement_timestamp() + make_interval(secs => %(overlap_seconds)s)
where destination_id = %(destination_id)s
  and scheme = %(scheme)s
  and valid_until is null

-- name: add_secret
insert into outrider.destination_secret (destination_id, secret)
values (%(destination_id)s, %(secret)s)
returning secret_id

-- name: add_private_key
insert into outrider.destination_secret (destination_id, secret, scheme, public_key)
values (%(destination_id)s, %(secret)s, 'v1a', %(public_key)s)
returning secret_id

-- name: list_destinations
select x.destination_id, x.url, x.enabled, x.disabled_reason, x.paused_at, x.paused_reason, x.start_rate_per_second, x.burst, x.concurrency,
       x.timeout_seconds, x.retry_first_delay_seconds, x.retry_factor, x.retry_max_delay_seconds,
       x.retry_max_attempts, x.retry_max_age_seconds, x.allowed_networks::text[] as allowed_networks,
       x.answer_rules, x.retry_delays_seconds, x.unauthorized_delays_seconds, x.static_headers,
       c.authorization_kind as authorization,
       c.ca is not null as has_ca, c.client_certificate is not null as has_client_certificate,
       x.created_at, x.updated_at,
       array(select s.event_type from outrider.subscription s
             where s.destination_id = x.destination_id order by s.event_type) as subscriptions
from outrider.destination x
left join outrider.destination_credential c on c.destination_id = x.destination_id
where %(destination_id)s::text is null or x.destination_id = %(destination_id)s
order by x.destination_id

-- name: list_secrets
select k.secret_id as key_id, k.scheme, k.public_key,
       (regexp_match(k.secret, '^sealed:1:([^:]+):'))[1] as sealed_with, k.created_at, k.valid_until,
       k.valid_until is null or k.valid_until > statement_timestamp() as is_valid
from outrider.destination_secret k
where k.destination_id = %(destination_id)s
order by k.created_at desc, k.secret_id

-- name: unsettled_by_state
select w.state, w.rows
from (
  select 'pending' as state, (select count(*) from outrider.delivery d
                              where d.destination_id = %(destination_id)s and d.state = 'pending') as rows
  union all
  select 'enqueued', (select count(*) from outrider.delivery d
                      where d.destination_id = %(destination_id)s and d.state = 'enqueued')
  union all
  select 'leased', (select count(*) from outrider.delivery d
                    where d.destination_id = %(destination_id)s and d.state = 'leased')
) w

-- name: page_of_dead
-- Of a selection, in the order of a clock, from behind a place in it: what is moved may come into the state again, and is
-- not taken up twice. What has lost its payload cannot be retried. Counted with no limit. Reads delivery_dead.
select d.delivery_id, d.settled_at as place
from outrider.delivery d
where d.state = 'dead'
  and (%(destination_id)s::text is null or d.destination_id = %(destination_id)s)
  and (%(outcome)s::text is null or d.last_outcome = %(outcome)s)
  and d.created_at <= %(created_until)s
  and d.settled_at <= %(until)s
  and exists (select from outrider.event e where e.event_id = d.event_id and e.payload is not null)
  and (d.settled_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.settled_at, d.delivery_id
limit %(page_rows)s

-- name: page_of_pending
-- Reads delivery_due.
select d.delivery_id, d.next_attempt_at as place
from outrider.delivery d
where d.state = 'pending'
  and d.destination_id = %(destination_id)s
  and (%(outcome)s::text is null or d.last_outcome = %(outcome)s)
  and d.created_at <= %(created_until)s
  and d.created_at <= %(until)s
  and (d.next_attempt_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.next_attempt_at, d.delivery_id
limit %(page_rows)s

-- name: page_of_enqueued
-- Reads delivery_in_transport.
select d.delivery_id, d.lost_after as place
from outrider.delivery d
where d.state = 'enqueued'
  and d.destination_id = %(destination_id)s
  and (%(outcome)s::text is null or d.last_outcome = %(outcome)s)
  and d.created_at <= %(created_until)s
  and d.created_at <= %(until)s
  and (d.lost_after, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.lost_after, d.delivery_id
limit %(page_rows)s

-- name: release_deliveries
-- Due now: dead, pending or enqueued -> pending. Many at once wait for the reconciler, which hands them out at their
-- destinations' rates; a message that is on its way is stale from here on.
update outrider.delivery d
set state = 'pending',
    next_attempt_at = statement_timestamp(),
    dispatches_lost = 0,
    dispatches_refused = 0,
    lost_after = null,
    settled_at = null,
    waiting_reason = 'retried'
where d.delivery_id = any (%(delivery_ids)s)
  and d.state in ('dead', 'pending', 'enqueued')
  and d.state = any (%(states)s)
returning d.delivery_id

-- name: retry_deliveries
-- dead, pending or enqueued -> enqueued with a new message, and succeeded where that is asked for. The attempt goes on
-- counting. Where a delivery comes with a dispatch, it moves only if that is its current one, or if it is dead.
with moved as (
  update outrider.delivery d
  set state = 'enqueued',
      dispatch_seq = d.dispatch_seq + 1,
      dispatches_lost = 0,
      dispatches_refused = 0,
      next_attempt_at = null,
      lost_after = statement_timestamp() + make_interval(secs => s.transport_timeout_seconds),
      settled_at = null,
      waiting_reason = null
  from outrider.ledger_setting s, unnest(%(delivery_ids)s::text[], %(dispatch_seqs)s::integer[]) w (delivery_id, dispatch_seq)
  where d.delivery_id = w.delivery_id
    and d.state in ('dead', 'pending', 'enqueued', 'succeeded')
    and d.state = any (%(states)s)
    and (w.dispatch_seq is null or d.state = 'dead' or d.dispatch_seq = w.dispatch_seq)
  returning d.delivery_id, d.event_id, d.destination_id, d.dispatch_seq
), dispatched as (
  insert into outrider.dispatch_outbox (
    message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
  select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
         e.event_id, e.event_type, e.content_type, e.headers, e.payload, 'replay'
  from moved m
  join outrider.event e on e.event_id = m.event_id
)
select m.delivery_id, m.dispatch_seq from moved m

-- name: cancel_deliveries
-- pending or enqueued -> dead. A message that is on its way is stale from here on.
update outrider.delivery d
set state = 'dead',
    settled_at = statement_timestamp(),
    next_attempt_at = null,
    lost_after = null,
    waiting_reason = null,
    last_outcome = 'cancelled'
where d.delivery_id = any (%(delivery_ids)s)
  and d.state in ('pending', 'enqueued')
  and d.state = any (%(states)s)
returning d.delivery_id
