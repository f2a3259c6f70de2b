-- Inserts only: retention drops partitions, and no update or delete is a fact to publish.
create publication outrider for table outrider.dispatch_outbox, outrider.delivery_attempt
  with (publish = 'insert', publish_via_partition_root = true);

-- connector: reads what it publishes. Its login also needs the attribute REPLICATION.
grant select on outrider.dispatch_outbox, outrider.delivery_attempt to outrider_connector;

-- worker (delivery and reconciler): moves deliveries along, and cannot touch events or settings.
grant select on outrider.event, outrider.destination, outrider.destination_pace, outrider.destination_secret,
                outrider.delivery, outrider.dispatch_outbox, outrider.delivery_attempt, outrider.run,
                outrider.ledger_setting
  to outrider_worker;
grant update (state, attempt, dispatch_seq, dispatches_lost, next_attempt_at, lost_after, leased_at, lease_until, lease_owner,
              waiting_reason, last_outcome, last_status, last_error, settled_at)
  on outrider.delivery to outrider_worker;
grant update (tokens, refilled_at) on outrider.destination_pace to outrider_worker;
grant insert on outrider.dispatch_outbox, outrider.delivery_attempt to outrider_worker;
grant insert, update (finished_at, counts, error) on outrider.run to outrider_worker;

-- operator: destinations and recorded acts.
grant select on all tables in schema outrider to outrider_operator;
grant insert, update, delete on outrider.destination, outrider.destination_pace, outrider.destination_secret,
                                outrider.subscription
  to outrider_operator;
grant update (state, dispatch_seq, dispatches_lost, next_attempt_at, lost_after, leased_at, lease_until, lease_owner,
              waiting_reason, last_outcome, settled_at)
  on outrider.delivery to outrider_operator;
grant insert on outrider.dispatch_outbox to outrider_operator;
grant insert, update on outrider.run to outrider_operator;
grant update on outrider.ledger_setting to outrider_operator;
