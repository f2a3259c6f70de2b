-- Sources: what reconcilers and operators keep about them. The sources' own statements lie in their files.

-- name: register
-- Nothing is written where the file says what is known, but that it was read.
insert into outrider.source as s (source_id, description, shard_count, can_shadow)
values (%(source_id)s, %(description)s, %(shard_count)s, %(can_shadow)s)
on conflict (source_id) do update
set description = excluded.description,
    shard_count = excluded.shard_count,
    can_shadow = excluded.can_shadow,
    read_at = clock_timestamp()

-- name: may_pass
select pg_has_role(session_user, 'outrider_reconciler', 'member')

-- name: standing
-- One row for each of the named sources, with the time at which the database says so.
select s.source_id, s.interval_at, s.cron_at, clock_timestamp() as now,
       s.enabled and exists (select from outrider.source_shard h
                             where h.source_id = s.source_id and h.shard_count = s.shard_count and h.mode <> 'off') as is_on,
       exists (select from outrider.source_wakeup w
               where w.source_id = s.source_id
                 and (w.taken_until is null or w.taken_until < statement_timestamp())) as is_woken
from outrider.source s
where s.source_id = any (%(source_ids)s::text[])

-- name: take_interval
-- One reconciler gets it: the others find that the time is another one by now.
update outrider.source
set interval_at = clock_timestamp()
where source_id = %(source_id)s
  and interval_at is not distinct from %(since)s
returning source_id

-- name: take_cron
-- The next tick may be a day away, so this one is kept as a wake-up until its pass has ended.
with taken as (
  update outrider.source
  set cron_at = clock_timestamp()
  where source_id = %(source_id)s
    and cron_at = %(since)s
  returning source_id
)
select outrider.wake_source(t.source_id, 'cron', null) from taken t

-- name: wake
select outrider.wake_source(%(source_id)s, %(woken_by)s, %(operator)s)

-- name: take_wakeup
-- Until the time is over nobody else takes it; then its pass counts as killed, and whoever takes it goes on under its run.
update outrider.source_wakeup w
set taken_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
from outrider.run r
where w.run_id = (
    select n.run_id
    from outrider.source_wakeup n
    where n.source_id = %(source_id)s
      and (n.taken_until is null or n.taken_until < statement_timestamp())
    order by n.requested_at
    limit 1
    for update skip locked)
  and r.run_id = w.run_id
returning w.run_id, r.woken_by, r.operator, r.counts

-- name: end_wakeup
delete from outrider.source_wakeup where run_id = %(run_id)s

-- name: share_switch
-- Held to the end of a page: who switches a source waits for the pages that run, and those that come see what was set.
select pg_advisory_xact_lock_shared(hashtext('outrider source'), hashtext(%(source_id)s))

-- name: hold_switch
select pg_advisory_xact_lock(hashtext('outrider source'), hashtext(%(source_id)s))

-- name: modes
-- Those that count for so many shards.
select s.enabled,
       array(select h.shard from outrider.source_shard h
             where h.source_id = s.source_id and h.shard_count = %(shard_count)s and h.mode = 'live'
             order by h.shard) as live,
       array(select h.shard from outrider.source_shard h
             where h.source_id = s.source_id and h.shard_count = %(shard_count)s and h.mode = 'shadow'
             order by h.shard) as shadow
from outrider.source s
where s.source_id = %(source_id)s

-- name: waiting_refusals
select f.event_id
from outrider.source_refusal f
where f.source_id = %(source_id)s
  and f.retry_at > statement_timestamp()
order by f.last_at desc
limit %(limit)s

-- name: record_refusals
-- Tried again after a minute, and after twice the time with each refusal more, up to an hour.
insert into outrider.source_refusal as f (source_id, event_id, reason, retry_at)
select %(source_id)s, n.event_id, n.reason, clock_timestamp() + interval '1 minute'
from unnest(%(event_ids)s::text[], %(reasons)s::text[]) as n(event_id, reason)
on conflict (source_id, event_id) do update
set reason = excluded.reason,
    times = f.times + 1,
    last_at = clock_timestamp(),
    retry_at = clock_timestamp() + least(interval '1 hour', interval '1 minute' * 2 ^ least(f.times, 6))

-- name: forget_refusals
-- Those that were admitted.
delete from outrider.source_refusal
where source_id = %(source_id)s
  and event_id = any (%(event_ids)s::text[])

-- name: forget_old_refusals
-- Those that nobody met again although they might have been tried: the row is no longer due.
delete from outrider.source_refusal
where source_id = %(source_id)s
  and retry_at < clock_timestamp() - interval '1 day'

-- name: start_run
insert into outrider.run (kind, woken_by, operator, reason, parameters)
values (%(kind)s, %(woken_by)s, coalesce(%(operator)s, session_user), %(reason)s, %(parameters)s)
returning run_id

-- name: describe_run
update outrider.run
set parameters = %(parameters)s
where run_id = %(run_id)s
  and finished_at is null

-- name: forget_empty_passes
select outrider.forget_empty_passes(make_interval(hours => %(hours)s))

-- name: list_sources
-- All, or the named one.
select s.source_id, s.description, s.enabled, s.shard_count, s.can_shadow, s.read_at,
       array(select coalesce(h.mode, 'off')
             from generate_series(0, s.shard_count - 1) as n(shard)
             left join outrider.source_shard h
               on h.source_id = s.source_id and h.shard = n.shard and h.shard_count = s.shard_count
             order by n.shard) as modes,
       exists (select from outrider.source_shard h
               where h.source_id = s.source_id and h.shard_count <> s.shard_count and h.mode <> 'off') as has_other_shards,
       exists (select from outrider.source_wakeup w where w.source_id = s.source_id) as is_woken,
       (select count(*) from outrider.source_refusal f where f.source_id = s.source_id) as refused,
       (select max(r.started_at) from outrider.run r
        where r.parameters ->> 'source' = s.source_id and r.kind in ('source.pass', 'source.shadow')) as passed_at
from outrider.source s
where s.source_id = coalesce(%(source_id)s, s.source_id)
order by s.source_id

-- name: refusals
select f.event_id, f.reason, f.times, f.first_at, f.last_at, f.retry_at
from outrider.source_refusal f
where f.source_id = %(source_id)s
order by f.last_at desc, f.event_id
limit %(limit)s

-- name: passes
select r.run_id, r.kind, r.woken_by, r.operator, r.started_at, r.finished_at, r.counts, r.error
from outrider.run r
where r.parameters ->> 'source' = %(source_id)s
  and r.kind in ('source.pass', 'source.shadow')
order by r.started_at desc
limit %(limit)s

-- name: set_modes
insert into outrider.source_shard as h (source_id, shard, shard_count, mode)
select %(source_id)s, n.shard, %(shard_count)s, %(mode)s
from unnest(%(shards)s::integer[]) as n(shard)
on conflict (source_id, shard) do update
set shard_count = excluded.shard_count, mode = excluded.mode, changed_at = clock_timestamp()
where h.mode <> excluded.mode or h.shard_count <> excluded.shard_count

-- name: set_enabled
update outrider.source set enabled = %(enabled)s where source_id = %(source_id)s and enabled <> %(enabled)s

-- name: tell_woken
select pg_notify('outrider_source_woken', %(source_id)s)
