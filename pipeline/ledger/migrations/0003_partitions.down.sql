drop function outrider.drop_expired_partitions;
drop function outrider.ensure_partitions;
drop table outrider.delivery_attempt_rest;
drop table outrider.dispatch_outbox_rest;
