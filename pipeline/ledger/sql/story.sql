-- What the ledger knows of one delivery's way, with the transactions that wrote it.

-- name: admission
select d.delivery_id, d.event_id, d.destination_id, d.state, d.dispatch_seq, d.attempt, d.waiting_reason, d.created_at,
       d.deliver_at, d.settled_at, d.last_outcome, e.event_type, e.admitted_by, e.admitted_at,
       e.admitted_in::text as admitted_in, e.admitted_lsn::text as admitted_lsn, e.payload_sha256 as body_sha256
from outrider.delivery d
join outrider.event e on e.event_id = d.event_id
where d.delivery_id = %(delivery_id)s

-- name: dispatches
select o.dispatch_seq, o.reason, o.created_at, o.message_id, o.xmin::text as transaction
from outrider.dispatch_outbox o
where o.delivery_id = %(delivery_id)s
order by o.dispatch_seq
limit %(limit)s

-- name: attempts
select a.attempt, a.dispatch_seq, a.result, a.outcome, a.status, a.ambiguous, a.worker_id, a.key_ids, a.started_at,
       a.duration_seconds, a.payload_sha256 as body_sha256, a.recorded_at
from outrider.delivery_attempt a
where a.delivery_id = %(delivery_id)s
order by a.attempt, a.recorded_at
limit %(limit)s

-- name: acts
-- Reads run_by_act from the delivery's admission on. Acts on a selection name its destination, and no ids: whether they
-- moved this delivery, they do not say.
select r.run_id, r.kind, r.operator, r.reason, r.started_at, r.finished_at, r.error,
       i.verdict, i.replayed_seq, r.xmin::text as transaction,
       coalesce(jsonb_exists(r.counts -> 'delivery_ids', %(delivery_id)s), false) or i.run_id is not null as is_named
from outrider.run r
left join outrider.replay_item i on i.run_id = r.run_id and i.delivery_id = %(delivery_id)s
where r.woken_by = 'operator'
  and r.started_at >= %(since)s
  and (jsonb_exists(r.counts -> 'delivery_ids', %(delivery_id)s)
       or i.run_id is not null
       or (r.counts ->> 'destination_id' = %(destination_id)s
           and (starts_with(r.kind, 'destination.')
                or (r.kind in ('delivery.retry', 'delivery.cancel') and r.counts -> 'delivery_ids' is null))))
order by r.started_at
limit %(limit)s
