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
select x.destination_id, x.url, x.enabled, x.disabled_reason, x.start_rate_per_second, x.burst, x.concurrency,
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

-- name: count_dead
select count(*) from outrider.delivery d
where d.state = 'dead' and d.destination_id = %(destination_id)s and d.settled_at <= %(until)s

-- name: count_pending
select count(*) from outrider.delivery d
where d.state = 'pending' and d.destination_id = %(destination_id)s and d.created_at <= %(until)s

-- name: page_of_dead
-- Only those that were dead when the act began: one that dies again is not taken up twice.
select d.delivery_id from outrider.delivery d
where d.state = 'dead' and d.destination_id = %(destination_id)s and d.settled_at <= %(until)s
order by d.settled_at, d.delivery_id
limit %(page_rows)s

-- name: page_of_pending
select d.delivery_id from outrider.delivery d
where d.state = 'pending' and d.destination_id = %(destination_id)s and d.created_at <= %(until)s
order by d.next_attempt_at
limit %(page_rows)s

-- name: retry_deliveries
-- dead -> enqueued, and succeeded -> enqueued where that is asked for. The attempt goes on counting.
with moved as (
  update outrider.delivery d
  set state = 'enqueued',
      dispatch_seq = d.dispatch_seq + 1,
      dispatches_lost = 0,
      lost_after = statement_timestamp() + make_interval(secs => s.transport_timeout_seconds),
      settled_at = null,
      waiting_reason = null
  from outrider.ledger_setting s
  where d.delivery_id = any (%(delivery_ids)s)
    and d.state in ('dead', 'succeeded')
    and d.state = any (%(states)s)
  returning d.delivery_id, d.event_id, d.destination_id, d.dispatch_seq
), dispatched as (
  insert into outrider.dispatch_outbox (
    message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
  select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
         e.event_id, e.event_type, e.content_type, e.headers, e.payload, 'replay'
  from moved m
  join outrider.event e on e.event_id = m.event_id
)
select m.delivery_id from moved m

-- name: cancel_deliveries
-- pending -> dead.
update outrider.delivery d
set state = 'dead',
    settled_at = statement_timestamp(),
    next_attempt_at = null,
    waiting_reason = null,
    last_outcome = 'cancelled'
where d.delivery_id = any (%(delivery_ids)s)
  and d.state = 'pending'
returning d.delivery_id
