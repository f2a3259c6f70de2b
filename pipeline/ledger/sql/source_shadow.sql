-- Shadow mode: what was seen of rows in shadow shards, and how it compares.

-- name: begin
-- When the shards' shadow began, when the last look that saw everything began before this one, and what time it is.
select coalesce((select min(h.changed_at) from outrider.source_shard h
                 where h.source_id = %(source_id)s and h.mode = 'shadow'), clock_timestamp()) as shadow_since,
       (select max(r.started_at) from outrider.run r
        where r.parameters ->> 'source' = %(source_id)s
          and r.kind = 'source.shadow'
          and r.finished_at is not null
          and (r.counts ->> 'is_complete')::boolean) as looked_at,
       clock_timestamp() as now

-- name: saw
-- Adds one look to what is known. A row that the claim gave has its type and hash; one that the direct query gave has none.
-- What an earlier look saw as due, and this look's claim did not give, is missed, unless another transaction held it. That one
-- has an older number than this statement, which comes after the claim.
insert into outrider.source_shadow as w (
  source_id, event_id, due_at, event_type, payload_sha256, candidate_at, candidate_looks, direct_at, direct_looks)
select %(source_id)s, n.event_id, n.due_at, n.event_type, n.payload_sha256,
       case when n.by_claim then clock_timestamp() end, n.by_claim::integer,
       case when n.by_query then clock_timestamp() end, n.by_query::integer
from unnest(%(event_ids)s::text[], %(due_ats)s::timestamptz[], %(event_types)s::text[], %(payload_sha256s)s::bytea[],
            %(by_claim)s::boolean[], %(by_query)s::boolean[])
     as n(event_id, due_at, event_type, payload_sha256, by_claim, by_query)
on conflict (source_id, event_id) do update
set due_at = coalesce(w.due_at, excluded.due_at),
    event_type = coalesce(excluded.event_type, w.event_type),
    payload_sha256 = coalesce(excluded.payload_sha256, w.payload_sha256),
    candidate_at = coalesce(w.candidate_at, excluded.candidate_at),
    candidate_looks = w.candidate_looks + excluded.candidate_looks,
    missed_in = coalesce(w.missed_in, case
      when excluded.candidate_looks = 0 and w.direct_at < %(looked_from)s then pg_current_xact_id()
    end),
    direct_at = coalesce(w.direct_at, excluded.direct_at),
    direct_looks = w.direct_looks + excluded.direct_looks

-- name: mark_live
-- What waits and is admitted by now, by whoever is live.
update outrider.source_shadow w
set live_at = e.admitted_at,
    was_looked_for = w.missed_in < e.admitted_in,
    is_same = (w.payload_sha256 is null or w.payload_sha256 = e.payload_sha256)
      and (w.event_type is null or w.event_type = e.event_type)
from outrider.event e
where w.source_id = %(source_id)s
  and w.live_at is null
  and e.event_id = w.event_id

-- name: admitted
-- A page of events of these types since a time, by event_by_time; those that are known already are left out.
select e.event_id, e.event_type, e.admitted_at,
       exists (select from outrider.source_shadow w
               where w.source_id = %(source_id)s and w.event_id = e.event_id) as is_known
from outrider.event e
where (e.admitted_at, e.event_id) > (%(after_time)s, %(after_id)s)
  and e.event_type = any (%(event_types)s::text[])
order by e.admitted_at, e.event_id
limit %(limit)s

-- name: saw_live
-- Events that neither claim nor direct query ever saw. A look that saw everything, from its begin to its end between the time
-- at which the row was due and that at which it was admitted, should have.
insert into outrider.source_shadow (source_id, event_id, due_at, live_at, is_same, was_looked_for)
select %(source_id)s, n.event_id, n.due_at, n.admitted_at, true,
       exists (select from outrider.run r
               where r.parameters ->> 'source' = %(source_id)s
                 and r.kind = 'source.shadow'
                 and (r.counts ->> 'is_complete')::boolean
                 and r.started_at between n.due_at and n.admitted_at
                 and r.finished_at <= n.admitted_at)
from unnest(%(event_ids)s::text[], %(due_ats)s::timestamptz[], %(admitted_ats)s::timestamptz[])
     as n(event_id, due_at, admitted_at)
on conflict do nothing

-- name: forget
delete from outrider.source_shadow
where source_id = %(source_id)s
  and first_at < clock_timestamp() - make_interval(days => %(days)s)

-- name: classified
-- The common part of the two below. One look may miss what another transaction holds in that moment, or what changes between
-- claim and direct query, so what counts as a difference between them was seen by one of them twice, and never by the other.
with since as (
  select coalesce((select min(h.changed_at) from outrider.source_shard h
                   where h.source_id = %(source_id)s and h.mode = 'shadow'), '-infinity') as moment
), classified as (
  select w.*,
         case
           when w.candidate_looks > 0 and w.live_at is not null and not w.is_same then 'differs'
           when w.candidate_looks > 1 and w.direct_looks = 0 then 'claim_only'
           when w.candidate_looks > 0 and w.live_at is not null then 'both'
           when w.candidate_looks > 0 and w.candidate_at > clock_timestamp() - make_interval(secs => %(grace_seconds)s)
             then 'waiting'
           when w.candidate_looks > 0 then 'candidate_only'
           when w.live_at is not null and w.was_looked_for then 'live_only'
           when w.live_at is not null then 'between_looks'
           when w.missed_in is not null and w.direct_at <= clock_timestamp() - make_interval(secs => %(grace_seconds)s)
             then 'due_only'
           else 'waiting'
         end as class
  from outrider.source_shadow w
  cross join since s
  where w.source_id = %(source_id)s
    and w.first_at >= s.moment
)

-- name: counts
select c.class, count(*) as rows,
       percentile_cont(array[0.5, 0.99, 1]) within group (
         order by extract(epoch from c.candidate_at - c.due_at)::double precision) as candidate_lags_seconds,
       percentile_cont(array[0.5, 0.99, 1]) within group (
         order by extract(epoch from c.live_at - c.due_at)::double precision) as live_lags_seconds
from classified c
group by c.class

-- name: differences
select c.class, c.event_id, c.due_at, c.candidate_at, c.direct_at, c.live_at,
       extract(epoch from coalesce(c.candidate_at, c.direct_at) - c.due_at)::double precision as candidate_lag_seconds,
       extract(epoch from coalesce(c.live_at, clock_timestamp()) - c.due_at)::double precision as live_lag_seconds
from classified c
where c.class in ('candidate_only', 'live_only', 'due_only', 'claim_only', 'differs')
order by c.class, c.first_at, c.event_id
limit %(limit)s

-- name: looks
select count(*) as looks,
       count(*) filter (where (r.counts ->> 'is_complete')::boolean) as complete,
       count(*) filter (where r.error is not null) as failed,
       max(r.started_at) as last_at,
       (select min(h.changed_at) from outrider.source_shard h
        where h.source_id = %(source_id)s and h.mode = 'shadow') as since
from outrider.run r
where r.parameters ->> 'source' = %(source_id)s
  and r.kind = 'source.shadow'
  and r.finished_at is not null
  and r.started_at >= coalesce((select min(h.changed_at) from outrider.source_shard h
                                where h.source_id = %(source_id)s and h.mode = 'shadow'), '-infinity')
