-- Replays: counting what one would do, selecting, and dispatching again. Items of a run are its record by id.

-- name: fits
-- The filters of a selection, on a delivery `d`. NULL: not asked for.
(%(destination_ids)s::text[] is null or d.destination_id = any (%(destination_ids)s))
and (%(states)s::text[] is null or d.state || '' = any (%(states)s))
and (%(outcomes)s::text[] is null or d.last_outcome = any (%(outcomes)s))
and (%(admitted_since)s::timestamptz is null or d.created_at >= %(admitted_since)s)
and (%(admitted_until)s::timestamptz is null or d.created_at < %(admitted_until)s)
and (%(event_types)s::text[] is null
     or exists (select from outrider.event e where e.event_id = d.event_id and e.event_type like any (%(event_types)s)))

-- name: is_wanted
-- Behind fits, where a run has a list of ids.
and exists (select from outrider.replay_wanted w where w.run_id = %(run_id)s and w.delivery_id = d.delivery_id)

-- name: is_wanted_in_plan
and exists (select from pg_temp.replay_listed w where w.delivery_id = d.delivery_id)

-- name: begin_plan
-- On disk, in no WAL, and gone with the session.
create temporary table replay_found (delivery_id text primary key);
create temporary table replay_listed (delivery_id text primary key);

-- name: begin_list
-- A list as it was given, in which an id may come twice.
create temporary table replay_given (delivery_id text)

-- name: copy_list
copy pg_temp.replay_given (delivery_id) from stdin

-- name: list_in_plan
insert into pg_temp.replay_listed (delivery_id) select distinct g.delivery_id from pg_temp.replay_given g

-- name: list_in_run
insert into outrider.replay_wanted (run_id, delivery_id)
select distinct %(run_id)s::uuid, g.delivery_id from pg_temp.replay_given g

-- name: end_list
drop table pg_temp.replay_given

-- name: unknown_of_list
select count(*) from pg_temp.replay_listed l
where not exists (select from outrider.delivery d where d.delivery_id = l.delivery_id)

-- name: find_in_plan
-- Deliveries of a batch of messages; returns the places of messages that are of no delivery here.
with message as (
  select * from unnest(%(delivery_ids)s::text[], %(keys)s::text[]) with ordinality as m (delivery_id, key, place)
), known as materialized (
  select m.place, m.delivery_id
  from message m
  join outrider.delivery d on d.delivery_id = m.delivery_id and d.destination_id = m.key
), found as (
  insert into pg_temp.replay_found (delivery_id) select k.delivery_id from known k on conflict do nothing
)
select m.place::integer from message m where not exists (select from known k where k.place = m.place)

-- name: from_topic
from pg_temp.replay_found f join outrider.delivery d on d.delivery_id = f.delivery_id where true

-- name: from_list
from pg_temp.replay_listed f join outrider.delivery d on d.delivery_id = f.delivery_id where d.created_at <= %(until)s

-- name: from_ledger
from outrider.delivery d where d.created_at <= %(until)s

-- name: from_dead
from outrider.delivery d where d.state = 'dead' and d.settled_at <= %(until)s

-- name: counts
-- In front of one of the sources above; the filters follow it.
select d.destination_id, d.state,
       outrider.replay_verdict(d.state, d.attempt, d.last_outcome, %(mode)s, %(takes_cancelled)s,
         d.settled_at is null
         or exists (select from outrider.event e where e.event_id = d.event_id and e.payload is not null)) as verdict,
       case when d.created_at > %(until)s::timestamptz - interval '1 hour' then 'under 1 h'
            when d.created_at > %(until)s::timestamptz - interval '6 hours' then '1 to 6 h'
            when d.created_at > %(until)s::timestamptz - interval '1 day' then '6 to 24 h'
            when d.created_at > %(until)s::timestamptz - interval '7 days' then '1 to 7 days'
            else 'over 7 days' end as age,
       count(*) as deliveries

-- name: sample
select d.delivery_id, d.destination_id, d.state, d.last_outcome, d.created_at

-- name: is_replayable
and outrider.replay_verdict(d.state, d.attempt, d.last_outcome, %(mode)s, %(takes_cancelled)s,
         d.settled_at is null
         or exists (select from outrider.event e where e.event_id = d.event_id and e.payload is not null)) = 'replay'

-- name: begin_replay
insert into outrider.replay (run_id, source, phase) values (%(run_id)s, %(source)s, %(phase)s)

-- name: add_cursor
insert into outrider.replay_cursor (run_id, topic, partition, begin_offset, next_offset, end_offset, removed)
values (%(run_id)s, %(topic)s, %(partition)s, %(begin_offset)s, %(begin_offset)s, %(end_offset)s, %(removed)s)

-- name: standing
select r.source, r.phase, r.wish, r.driver, r.driver_seen_at, r.after_destination, r.after_time, r.after_id,
       statement_timestamp() as seen_at
from outrider.replay r
where r.run_id = %(run_id)s

-- name: cursors
select c.topic, c.partition, c.begin_offset, c.next_offset, c.end_offset, c.messages, c.refused, c.removed
from outrider.replay_cursor c
where c.run_id = %(run_id)s
order by c.topic, c.partition

-- name: drive
-- First in each transaction of whoever drives the run: what is wished now, and nobody changes it before the commit.
update outrider.replay
set driver = %(driver)s, driver_seen_at = statement_timestamp()
where run_id = %(run_id)s
  and phase <> 'over'
returning wish, phase

-- name: leave
update outrider.replay set driver = null where run_id = %(run_id)s and driver = %(driver)s

-- name: wish
update outrider.replay
set wish = %(wish)s
where run_id = %(run_id)s
  and phase <> 'over'
  and wish <> 'cancel'
  and wish <> %(wish)s
returning wish

-- name: enter_phase
update outrider.replay set phase = %(phase)s where run_id = %(run_id)s and phase <> 'over'

-- name: advance
update outrider.replay_cursor
set next_offset = %(next_offset)s,
    messages = messages + %(messages)s,
    refused = refused + %(refused)s,
    removed = removed + %(removed)s
where run_id = %(run_id)s
  and topic = %(topic)s
  and partition = %(partition)s
  and next_offset <= %(next_offset)s

-- name: unknown_of
-- Places of messages that are of no delivery here.
select m.place::integer
from unnest(%(delivery_ids)s::text[], %(keys)s::text[]) with ordinality as m (delivery_id, key, place)
where not exists (select from outrider.delivery d where d.delivery_id = m.delivery_id and d.destination_id = m.key)

-- name: select_items
-- In front of fits, with in_order behind them. A delivery that the run has met before, in another message, is one item.
with taken as (
insert into outrider.replay_item (run_id, delivery_id, destination_id, dispatch_seq, verdict, decided_at)
select %(run_id)s, d.delivery_id, d.destination_id, d.dispatch_seq, nullif(v.verdict, 'replay'),
       case when v.verdict <> 'replay' then statement_timestamp() end
from unnest(%(delivery_ids)s::text[]) with ordinality as m (delivery_id, place)
join outrider.delivery d on d.delivery_id = m.delivery_id
cross join lateral (
  select outrider.replay_verdict(d.state, d.attempt, d.last_outcome, %(mode)s, %(takes_cancelled)s,
         d.settled_at is null
         or exists (select from outrider.event e where e.event_id = d.event_id and e.payload is not null)) as verdict
) v
where true

-- name: in_order
order by m.place
on conflict (run_id, delivery_id) do nothing
returning coalesce(verdict, 'waiting') as verdict
)
select verdict, count(*) from taken group by verdict

-- name: page_of_list
-- Of the ids that were given, in their order; whatever the ledger knows of them.
select ''::text as destination_id, '0001-01-01 00:00:00+00'::timestamptz as place, w.delivery_id
from outrider.replay_wanted w
where w.run_id = %(run_id)s
  and w.delivery_id > %(after_id)s
order by w.delivery_id
limit %(page_rows)s

-- name: next_destination
select x.destination_id
from outrider.destination x
where x.destination_id > %(after_destination)s
  and (%(destination_ids)s::text[] is null or x.destination_id = any (%(destination_ids)s))
order by x.destination_id
limit 1

-- name: page_of_ledger
-- Of one destination, through delivery_by_destination.
select d.destination_id, d.created_at as place, d.delivery_id
from outrider.delivery d
where d.destination_id = %(after_destination)s
  and d.created_at <= %(until)s
  and d.created_at >= greatest(%(after_time)s::timestamptz, %(admitted_since)s::timestamptz)
  and (d.created_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.created_at, d.delivery_id
limit %(page_rows)s

-- name: page_of_dead
-- In the order of their deaths, through delivery_dead.
select ''::text as destination_id, d.settled_at as place, d.delivery_id
from outrider.delivery d
where d.state = 'dead'
  and d.settled_at <= %(until)s
  and d.settled_at >= %(after_time)s
  and (d.settled_at, d.delivery_id) > (%(after_time)s, %(after_id)s)
order by d.settled_at, d.delivery_id
limit %(page_rows)s

-- name: move_ledger_cursor
update outrider.replay
set after_destination = %(after_destination)s, after_time = %(after_time)s, after_id = %(after_id)s
where run_id = %(run_id)s

-- name: dispatch_items
-- dead, pending, enqueued or succeeded -> enqueued with a new message, for the next items of a run. Live traffic goes first:
-- a destination is given its share of what it can start within the window, less all that was handed out within it, or waits
-- for its turn already. (What was handed out earlier may be what the run is about.) What has been dispatched otherwise since it was selected is left alone.
with room as materialized (
  select x.destination_id,
         case when busy.rows = 0 then greatest(1, capacity.rows) else capacity.rows - busy.rows end as rows
  from outrider.destination x
  join outrider.destination_pace p on p.destination_id = x.destination_id
  cross join outrider.ledger_setting s
  cross join lateral outrider.rate_share(p.share_at_slowing, p.slowed_at, statement_timestamp()) as r(share)
  cross join lateral (
    select least(50000, floor(%(share)s * (
      outrider.tokens_at(p.tokens, p.refilled_at, x.start_rate_per_second, x.burst, r.share, statement_timestamp())
      + x.start_rate_per_second * r.share * %(window_seconds)s)))::bigint as rows
  ) capacity
  cross join lateral (
    select (select count(*) from (
              select from outrider.delivery e
              where e.destination_id = x.destination_id and e.state = 'enqueued'
                and e.lost_after > statement_timestamp()
                  + make_interval(secs => greatest(0, s.transport_timeout_seconds - %(window_seconds)s))
              limit greatest(1, capacity.rows)) e)
         + (select count(*) from (
              select from outrider.delivery e
              where e.destination_id = x.destination_id and e.state = 'pending' and e.next_attempt_at <= statement_timestamp()
              limit greatest(1, capacity.rows)) e)
         + (select count(*) from (
              select from outrider.delivery e
              where e.destination_id = x.destination_id and e.state = 'pending' and e.waiting_reason = 'rate'
                and e.next_attempt_at > statement_timestamp()
              limit greatest(1, capacity.rows)) e) as rows
  ) busy
  where x.enabled
    and x.paused_at is null
    and coalesce(p.paused_until, '-infinity') <= statement_timestamp()
    and p.open_until is null
    and exists (select from outrider.replay_item i
                where i.run_id = %(run_id)s and i.destination_id = x.destination_id and i.verdict is null)
  order by random()
), picked as materialized (
  select i.*
  from room r
  cross join lateral (
    select i.delivery_id, i.dispatch_seq
    from outrider.replay_item i
    where i.run_id = %(run_id)s
      and i.destination_id = r.destination_id
      and i.verdict is null
    order by i.item_no
    limit least(greatest(r.rows, 0), %(page_rows)s)
  ) i
  limit %(page_rows)s
), locked as materialized (
  -- Whoever is at one of them now ends first; its turn comes with the next page.
  select d.delivery_id, d.state, d.dispatch_seq, p.dispatch_seq as selected_seq,
         outrider.replay_verdict(d.state, d.attempt, d.last_outcome, %(mode)s, %(takes_cancelled)s,
         d.settled_at is null
         or exists (select from outrider.event e where e.event_id = d.event_id and e.payload is not null)) as verdict
  from picked p
  join outrider.delivery d on d.delivery_id = p.delivery_id
  for no key update of d skip locked
), moved as (
  update outrider.delivery d
  set state = 'enqueued',
      dispatch_seq = d.dispatch_seq + 1,
      dispatches_lost = 0,
      dispatches_refused = 0,
      next_attempt_at = null,
      lost_after = statement_timestamp() + make_interval(secs => s.transport_timeout_seconds),
      settled_at = null,
      waiting_reason = null
  from locked l
  cross join outrider.ledger_setting s
  where d.delivery_id = l.delivery_id
    and d.state || '' = l.state
    and d.dispatch_seq = l.selected_seq
    and l.verdict = 'replay'
  returning d.delivery_id, d.event_id, d.destination_id, d.dispatch_seq
), dispatched as (
  insert into outrider.dispatch_outbox (
    message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
  select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
         e.event_id, e.event_type, e.content_type, e.headers, e.payload, 'replay'
  from moved m
  join outrider.event e on e.event_id = m.event_id
), decided as (
  update outrider.replay_item i
  set verdict = case when m.delivery_id is not null then 'replayed'
                     when l.verdict = 'replay' then 'gone_on' else l.verdict end,
      replayed_seq = m.dispatch_seq,
      decided_at = statement_timestamp()
  from locked l
  left join moved m on m.delivery_id = l.delivery_id
  where i.run_id = %(run_id)s
    and i.delivery_id = l.delivery_id
    and i.verdict is null
  returning i.verdict
)
select verdict, count(*) from decided group by verdict

-- name: skip_disabled
-- What no claim will start is not replayed.
update outrider.replay_item i
set verdict = 'destination_disabled', decided_at = statement_timestamp()
from outrider.destination x
where not x.enabled
  and x.destination_id = i.destination_id
  and i.run_id = %(run_id)s
  and i.verdict is null

-- name: forget_items
delete from outrider.replay_item
where run_id = %(run_id)s
  and delivery_id = any (array(select i.delivery_id from outrider.replay_item i where i.run_id = %(run_id)s limit %(rows)s))

-- name: forget_rest
with wanted as (
  delete from outrider.replay_wanted where run_id = %(run_id)s
)
delete from outrider.replay_evidence where run_id = %(run_id)s

-- name: counts_of_items
select coalesce(i.verdict, 'waiting'), count(*) from outrider.replay_item i where i.run_id = %(run_id)s group by 1

-- name: has_waiting
select exists (select from outrider.replay_item i where i.run_id = %(run_id)s and i.verdict is null)

-- name: waits_for
-- Destinations that items wait for, and why their turn does not come.
select x.destination_id,
       case when x.paused_at is not null then 'paused'
            when p.paused_until > statement_timestamp() then 'throttled'
            when p.open_until is not null then 'breaker_open' end as hold
from outrider.destination x
join outrider.destination_pace p on p.destination_id = x.destination_id
where exists (select from outrider.replay_item i
              where i.run_id = %(run_id)s and i.destination_id = x.destination_id and i.verdict is null)
order by x.destination_id
limit %(limit)s

-- name: report
-- By id, in order. What became of a replayed delivery is what the ledger says of it now.
select i.delivery_id, i.destination_id,
       case when i.verdict is null then 'left' when i.verdict in ('replayed', 'rebuilt', 'advanced') then i.verdict
            else 'skipped' end as result,
       case when i.verdict is null or i.verdict not in ('replayed', 'rebuilt', 'advanced') then i.verdict end as why,
       case when i.verdict in ('replayed', 'rebuilt', 'advanced') then
         case d.state when 'succeeded' then 'succeeded' when 'dead' then 'failed' else 'on its way' end end as outcome,
       i.replayed_seq as dispatch_seq, d.state as state_now, d.last_outcome, d.last_status
from outrider.replay_item i
left join outrider.delivery d on d.delivery_id = i.delivery_id
where i.run_id = %(run_id)s
order by i.delivery_id
