-- What the ledger says about itself. No statement here changes a row.

-- name: oldest_due_seconds
-- One look into delivery_due for each destination, however many rows wait.
select coalesce(max(extract(epoch from statement_timestamp() - first_due.next_attempt_at)), 0)::double precision
from outrider.destination x
cross join lateral (
  select d.next_attempt_at
  from outrider.delivery d
  where d.destination_id = x.destination_id
    and d.state = 'pending'
    and d.next_attempt_at <= statement_timestamp()
  order by d.next_attempt_at
  limit 1
) first_due
where x.enabled
