-- Retention of payloads. An event keeps its row, its hash and so its identity; only the bytes go.

-- name: page
-- Events that were admitted so long ago and still have their bytes, by event_with_payload, from behind a place in it.
select e.event_id, e.admitted_at
from outrider.event e
where e.payload is not null
  and e.admitted_at < statement_timestamp() - make_interval(days => %(keep_days)s)
  and (e.admitted_at, e.event_id) > (%(after_time)s, %(after_id)s)
order by e.admitted_at, e.event_id
limit %(page_rows)s

-- name: hold
-- Whoever is at one of them now, a replay or an admission, has a use for it.
select e.event_id
from outrider.event e
where e.event_id = any (%(event_ids)s::text[])
  and e.payload is not null
for update skip locked

-- name: remove
-- The next statement of the transaction that holds them: it sees every delivery that was dispatched again before that, and
-- none can be until the commit.
update outrider.event e
set payload = null, payload_removed_at = statement_timestamp()
where e.event_id = any (%(event_ids)s::text[])
  and not exists (select from outrider.delivery d
                  where d.event_id = e.event_id
                    and (d.settled_at is null
                         or d.settled_at >= statement_timestamp() - make_interval(days => %(keep_days)s)))
returning e.event_id
