-- What the ledger would say to dispatches, were they read now. Nothing here changes a row.

-- name: standing_of_dispatches
select count(*) filter (where d.state = 'enqueued' and d.dispatch_seq = w.dispatch_seq) as current,
       count(*) filter (where d.delivery_id is null) as unknown,
       max(d.lost_after) filter (where d.state = 'enqueued' and d.dispatch_seq = w.dispatch_seq) as found_until
from unnest(%(delivery_ids)s::text[], %(dispatch_seqs)s::integer[]) as w (delivery_id, dispatch_seq)
left join outrider.delivery d on d.delivery_id = w.delivery_id

-- name: dispatches_on_the_way
-- Read from delivery_in_transport: each of these rows has exactly one current message.
select count(*) as current, 0 as unknown, max(d.lost_after) as found_until
from outrider.delivery d
where d.state = 'enqueued'
