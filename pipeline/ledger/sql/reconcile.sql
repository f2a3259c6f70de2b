-- The transitions that the reconciler makes: one bounded page, one statement, one commit.

-- name: dispatch_page
-- pending -> enqueued where due, leased -> enqueued where the lease is over, enqueued -> enqueued where the dispatch
-- is lost; each with its outbox row. A destination is given no more than it can start within the window, less what
-- is on its way already: what waits beyond that stays pending and goes round no circles.
with setting as materialized (
  select transport_timeout_seconds from outrider.ledger_setting
), room as materialized (
  select x.destination_id, capacity.rows - on_the_way.rows as rows,
         p.open_until is not null and mod(p.openings, 2) = 1 as is_probed_by_retry
  from outrider.destination x
  join outrider.destination_pace p on p.destination_id = x.destination_id
  cross join lateral outrider.rate_share(p.share_at_slowing, p.slowed_at, statement_timestamp()) as r(share)
  cross join lateral (
    -- Bounded, because what is on the way is counted up to it. An open breaker lets one through when its time is over.
    select case
             when p.open_until is null then least(50000, floor(
               outrider.tokens_at(p.tokens, p.refilled_at, x.start_rate_per_second, x.burst, r.share, statement_timestamp())
               + x.start_rate_per_second * r.share * %(window_seconds)s))::bigint
             when p.open_until > statement_timestamp() or p.probe_until > statement_timestamp() then 0
             else 1
           end as rows
  ) capacity
  cross join lateral (
    select count(*) as rows
    from (
      select from outrider.delivery e
      where e.destination_id = x.destination_id and e.state = 'enqueued' and e.lost_after > statement_timestamp()
      limit capacity.rows
    ) e
  ) on_the_way
  where x.enabled
    and x.paused_at is null
    and coalesce(p.paused_until, '-infinity') <= statement_timestamp()
  -- No destination is always first: when a page is full, the others must not wait for the same ones each time.
  order by random()
), probe as materialized (
  -- What probes a receiver that has failed. A retry every other time, because some fail whatever they see first; a first
  -- try the other times, because some fail for what those few deliveries carry.
  select r.destination_id, d.*
  from room r
  cross join lateral (
    select d.delivery_id, d.state, d.leased_at, d.lease_owner
    from outrider.delivery d
    where d.destination_id = r.destination_id
      and d.state = 'pending'
      and d.attempt > 0
      and d.next_attempt_at <= statement_timestamp()
    order by d.next_attempt_at
    limit 1
    for update skip locked
  ) d
  where r.is_probed_by_retry
    and r.rows > 0
  limit %(page_rows)s
), due as materialized (
  select d.*
  from room r
  cross join lateral (
    select d.delivery_id, d.state, d.leased_at, d.lease_owner
    from outrider.delivery d
    where d.destination_id = r.destination_id
      and d.state = 'pending'
      and d.next_attempt_at <= statement_timestamp()
    order by d.next_attempt_at
    limit least(greatest(r.rows, 0), %(page_rows)s)
    for update skip locked
  ) d
  where not exists (select from probe p where p.destination_id = r.destination_id)
  limit %(page_rows)s
), early as materialized (
  -- What waits in line for the rate alone need not wait for its time where the rate has room.
  select d.*
  from room r
  cross join lateral (
    select d.delivery_id, d.state, d.leased_at, d.lease_owner
    from outrider.delivery d
    where d.destination_id = r.destination_id
      and d.state = 'pending'
      and d.waiting_reason = 'rate'
      and d.next_attempt_at > statement_timestamp()
    order by d.next_attempt_at
    limit least(greatest(r.rows - (
      select count(*) from (
        select from outrider.delivery o
        where o.destination_id = r.destination_id
          and o.state = 'pending'
          and o.next_attempt_at <= statement_timestamp()
        limit greatest(r.rows, 0)
      ) o), 0), %(page_rows)s)
    for update skip locked
  ) d
  limit %(page_rows)s
), lost as materialized (
  select d.*
  from room r
  cross join lateral (
    select d.delivery_id, d.state, d.leased_at, d.lease_owner
    from outrider.delivery d
    where d.destination_id = r.destination_id
      and d.state = 'enqueued'
      and d.lost_after <= statement_timestamp()
    order by d.lost_after
    limit least(greatest(r.rows, 0), %(page_rows)s)
    for update skip locked
  ) d
  limit %(page_rows)s
), expired as materialized (
  select d.delivery_id, d.state, d.leased_at, d.lease_owner
  from outrider.delivery d
  where d.state = 'leased'
    and d.lease_until <= statement_timestamp()
  order by d.lease_until
  limit %(page_rows)s
  for update skip locked
), picked as (
  -- The parts above are computed, and their rows locked, only as far as this limit pulls them.
  select 'lease_expired' as reason, * from expired
  union all
  select 'due', p.delivery_id, p.state, p.leased_at, p.lease_owner from probe p
  union all
  select 'due', * from due
  union all
  select 'due', * from early
  union all
  select 'lost', * from lost
  limit %(page_rows)s
), moved as (
  update outrider.delivery d
  set state = 'enqueued',
      dispatch_seq = d.dispatch_seq + 1,
      dispatches_lost = case when p.reason = 'lost' then d.dispatches_lost + 1 else 0 end,
      lost_after = statement_timestamp() + make_interval(secs => s.transport_timeout_seconds
        * 2 ^ case when p.reason = 'lost' then least(d.dispatches_lost + 1, 5) else 0 end),
      next_attempt_at = null,
      leased_at = null,
      lease_until = null,
      lease_owner = null,
      waiting_reason = null
  from picked p
  cross join setting s
  where d.delivery_id = p.delivery_id
    and d.state = p.state
  returning d.delivery_id, d.event_id, d.destination_id, d.dispatch_seq, d.attempt, p.reason, p.leased_at, p.lease_owner
), dispatched as (
  insert into outrider.dispatch_outbox (
    message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
  select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
         e.event_id, e.event_type, e.content_type, e.headers, e.payload,
         case when m.reason = 'due' and m.attempt = 0 then 'turn' else m.reason end
  from moved m
  join outrider.event e on e.event_id = m.event_id
), abandoned as (
  -- Whoever held the lease may have sent its request: the attempt stays on record.
  insert into outrider.delivery_attempt (
    delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, worker_id, result, outcome, ambiguous,
    error, payload_sha256, started_at, duration_seconds)
  select m.delivery_id, m.event_id, e.event_type, m.destination_id, m.attempt, m.dispatch_seq - 1, m.lease_owner,
         'lease_expired', 'lease_expired', true, 'no result before the lease ended', e.payload_sha256, m.leased_at,
         extract(epoch from statement_timestamp() - m.leased_at)
  from moved m
  join outrider.event e on e.event_id = m.event_id
  where m.reason = 'lease_expired'
)
select count(*) filter (where reason = 'due') as due,
       count(*) filter (where reason = 'lost') as lost,
       count(*) filter (where reason = 'lease_expired') as lease_expired
from moved

-- name: start_run
insert into outrider.run (kind, woken_by, operator, reason)
values (%(kind)s, %(woken_by)s, coalesce(%(operator)s, session_user), %(reason)s)
returning run_id

-- name: finish_run
update outrider.run
set finished_at = clock_timestamp(), counts = %(counts)s, error = %(error)s
where run_id = %(run_id)s
  and finished_at is null

-- name: ensure_partitions
select outrider.ensure_partitions(%(days_ahead)s)

-- name: drop_expired_partitions
select outrider.drop_expired_partitions(%(outbox_days)s, %(attempt_days)s)

-- name: count_run
update outrider.run
set counts = %(counts)s
where run_id = %(run_id)s
  and finished_at is null
