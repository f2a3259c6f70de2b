-- Retries that wait, for the reconciler, which probes a failing receiver by one of them.
create index delivery_to_retry on outrider.delivery (destination_id, next_attempt_at)
  where state = 'pending' and attempt > 0;
