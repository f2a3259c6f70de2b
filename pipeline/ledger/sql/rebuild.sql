-- Rebuilding what a restore of the database has lost. The functions are in migrations 0013 and 0018.

-- name: begin_rebuild_plan
create temporary table replay_evidence (like outrider.replay_evidence including all);
create temporary table replay_found (
  delivery_id text primary key, destination_id text not null, logged_at timestamptz not null, verdict text not null, state text);

-- name: gather
insert into outrider.replay_evidence as v

-- name: gather_in_plan
insert into pg_temp.replay_evidence as v

-- name: evidence
-- Behind one of the two. What the ledger knows as well is left out.
(run_id, delivery_id, attempt, dispatch_seq, result, outcome, status, recorded_at)
select %(run_id)s, g.*
from (
  select m.delivery_id, max(m.attempt) as attempt, max(m.dispatch_seq) as dispatch_seq,
         (array_agg(m.result order by m.result = 'succeeded' desc, m.attempt desc) filter (where m.result <> 'late'))[1] as result,
         (array_agg(m.outcome order by m.result = 'succeeded' desc, m.attempt desc) filter (where m.result <> 'late'))[1] as outcome,
         (array_agg(m.status order by m.result = 'succeeded' desc, m.attempt desc) filter (where m.result <> 'late'))[1] as status,
         max(m.recorded_at) as recorded_at
  from unnest(%(delivery_ids)s::text[], %(attempts)s::integer[], %(dispatch_seqs)s::integer[], %(results)s::text[],
              %(outcomes)s::text[], %(statuses)s::integer[], %(recorded_at)s::timestamptz[])
    as m (delivery_id, attempt, dispatch_seq, result, outcome, status, recorded_at)
  left join outrider.delivery d on d.delivery_id = m.delivery_id
  where d.delivery_id is null or d.attempt < m.attempt or d.state || '' = 'leased'
  group by m.delivery_id
) g
on conflict (run_id, delivery_id) do update
set attempt = greatest(v.attempt, excluded.attempt),
    dispatch_seq = greatest(v.dispatch_seq, excluded.dispatch_seq),
    result = case when v.result = 'succeeded' then v.result else coalesce(excluded.result, v.result) end,
    outcome = case when v.result = 'succeeded' then v.outcome else coalesce(excluded.outcome, v.outcome) end,
    status = case when v.result = 'succeeded' then v.status else coalesce(excluded.status, v.status) end,
    recorded_at = case when v.result = 'succeeded' then v.recorded_at else greatest(v.recorded_at, excluded.recorded_at) end

-- name: find_rebuilds
-- What a run would do about a batch, into a plan's table.
insert into pg_temp.replay_found (delivery_id, destination_id, logged_at, verdict, state)
select f.delivery_id, f.destination_id, f.logged_at, v.verdict, f.state
from outrider.rebuild_findings(%(messages)s::jsonb, %(payloads)b::bytea[]) f
left join pg_temp.replay_evidence e on e.run_id = %(run_id)s and e.delivery_id = f.delivery_id
cross join lateral (
  select outrider.rebuild_verdict(f.finding, f.state, f.attempt, e.attempt, e.result) as verdict
) v
where v.verdict <> 'known'
on conflict do nothing

-- name: count_rebuilds
select f.destination_id, coalesce(f.state, 'missing') as state, f.verdict,
       case when f.logged_at > %(until)s::timestamptz - interval '1 hour' then 'under 1 h'
            when f.logged_at > %(until)s::timestamptz - interval '6 hours' then '1 to 6 h'
            when f.logged_at > %(until)s::timestamptz - interval '1 day' then '6 to 24 h'
            when f.logged_at > %(until)s::timestamptz - interval '7 days' then '1 to 7 days'
            else 'over 7 days' end as age,
       count(*) as deliveries
from pg_temp.replay_found f
group by 1, 2, 3, 4
order by 1, 3, 2, 4

-- name: sample_rebuilds
select f.delivery_id, f.destination_id, f.verdict as state, null::text as last_outcome, f.logged_at as created_at
from pg_temp.replay_found f
where f.verdict like 'rebuild%%' or f.verdict = 'advance'
order by f.logged_at, f.delivery_id
limit %(rows)s

-- name: rebuild
select verdict, deliveries from outrider.rebuild_deliveries(%(run_id)s, %(messages)s::jsonb, %(payloads)b::bytea[])

-- name: given_attempt_ids
select outrider.given_attempt_ids()

-- name: raise_attempt_ids
select outrider.raise_attempt_ids(%(run_id)s, %(proven)s)

-- name: release_page
-- What was rebuilt as due becomes so, along the run's rate, from behind an id; returns the last id of the page.
with page as (
  select i.delivery_id, row_number() over (order by i.delivery_id) as place
  from outrider.replay_item i
  where i.run_id = %(run_id)s and i.verdict = 'rebuilt' and i.delivery_id > %(after_id)s
  order by i.delivery_id
  limit %(page_rows)s
), released as (
  update outrider.delivery d
  set next_attempt_at = statement_timestamp() + make_interval(secs => (%(before)s + p.place) / %(rate_per_second)s)
  from page p
  where d.delivery_id = p.delivery_id
    and d.state || '' = 'pending'
    and d.waiting_reason = 'rebuilt'
)
select max(p.delivery_id), count(*) from page p
