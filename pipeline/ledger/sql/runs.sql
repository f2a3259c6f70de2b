-- Runs: what operators and reconcilers did. Opened and closed by the statements in reconcile.sql.

-- name: detail_run
-- NULL leaves a part as it is.
update outrider.run
set parameters = coalesce(%(parameters)s, parameters),
    before = coalesce(%(before)s, before),
    after = coalesce(%(after)s, after)
where run_id = %(run_id)s
  and finished_at is null

-- name: one_run
select r.run_id, r.kind, r.woken_by, r.operator, r.reason, r.parameters, r.before, r.after, r.counts, r.started_at,
       r.finished_at, r.error
from outrider.run r
where r.run_id = %(run_id)s

-- name: newest_runs
-- Reads run_by_start from its end.
select r.run_id, r.kind, r.woken_by, r.operator, r.reason, r.parameters, r.before, r.after, r.counts, r.started_at,
       r.finished_at, r.error
from outrider.run r
where (r.started_at, r.run_id) < (%(before_time)s, %(before_id)s)
order by r.started_at desc, r.run_id desc
limit %(limit)s

-- name: newest_acts
-- Those of people. Reads run_by_act, since passes of reconcilers are far more.
select r.run_id, r.kind, r.woken_by, r.operator, r.reason, r.parameters, r.before, r.after, r.counts, r.started_at,
       r.finished_at, r.error
from outrider.run r
where r.woken_by = 'operator'
  and (r.started_at, r.run_id) < (%(before_time)s, %(before_id)s)
order by r.started_at desc, r.run_id desc
limit %(limit)s

-- name: newest_of_kind
-- Reads run_by_time from the end of the kind.
select r.run_id, r.kind, r.woken_by, r.operator, r.reason, r.parameters, r.before, r.after, r.counts, r.started_at,
       r.finished_at, r.error
from outrider.run r
where r.kind = %(kind)s
  and (r.started_at, r.run_id) < (%(before_time)s, %(before_id)s)
order by r.started_at desc, r.run_id desc
limit %(limit)s

-- name: lock_act
-- Held by the session: one act at a time on a thing that is not in the database.
select pg_try_advisory_lock(hashtext('outrider ' || %(what)s), hashtext(%(name)s))

-- name: await_act
-- As lock_act, when it is free.
select pg_advisory_lock(hashtext('outrider ' || %(what)s), hashtext(%(name)s))

-- name: unlock_act
select pg_advisory_unlock(hashtext('outrider ' || %(what)s), hashtext(%(name)s))
