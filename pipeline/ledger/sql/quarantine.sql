-- What an operator releases from quarantine is dispatched again; the refused message stays where it is.

-- name: dispatch_again
-- dead -> enqueued, and pending or enqueued -> enqueued where the refused message is still the current one. A delivery
-- that has gone on since, by the reconciler or by another message, stays as it is.
with moved as (
  update outrider.delivery d
  set state = 'enqueued',
      dispatch_seq = d.dispatch_seq + 1,
      dispatches_lost = 0,
      dispatches_refused = 0,
      next_attempt_at = null,
      lost_after = statement_timestamp() + make_interval(secs => s.transport_timeout_seconds),
      settled_at = null,
      waiting_reason = null
  from outrider.ledger_setting s
  where d.delivery_id = %(delivery_id)s
    and (d.state = 'dead' or d.state in ('pending', 'enqueued') and d.dispatch_seq = %(dispatch_seq)s)
  returning d.delivery_id, d.event_id, d.destination_id, d.dispatch_seq
), dispatched as (
  insert into outrider.dispatch_outbox (
    message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
  select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
         e.event_id, e.event_type, e.content_type, e.headers, e.payload, 'replay'
  from moved m
  join outrider.event e on e.event_id = m.event_id
)
select m.dispatch_seq from moved m
