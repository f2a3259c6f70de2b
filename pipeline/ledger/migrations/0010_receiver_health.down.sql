drop trigger hold_back on outrider.delivery;
drop function outrider.hold_back, outrider.breaker_opens, outrider.tokens_at, outrider.rate_share;
update outrider.dispatch_outbox set reason = 'due' where reason = 'turn';
alter table outrider.dispatch_outbox drop constraint dispatch_outbox_reason_check;
alter table outrider.dispatch_outbox add constraint dispatch_outbox_reason_check
  check (reason in ('admitted', 'due', 'lease_expired', 'lost', 'replay'));
drop index outrider.delivery_in_line;
alter table outrider.delivery drop column dispatches_refused;
alter table outrider.destination
  drop column paused_at,
  drop column paused_reason,
  drop column backlogged_until;
alter table outrider.destination_pace
  drop column share_at_slowing,
  drop column slowed_at,
  drop column paused_until,
  drop column failures,
  drop column openings,
  drop column open_until,
  drop column probe_until;
