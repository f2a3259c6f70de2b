alter table outrider.event
  drop column admitted_in,
  drop column admitted_lsn;

create table outrider_audit.record_unchained (
  topic          text not null,
  partition      integer not null,
  log_offset     bigint not null,
  logged_at      timestamptz not null,
  recorded_at    timestamptz not null default clock_timestamp(),
  delivery_id    text,
  destination_id text,
  dispatch_seq   integer,
  attempt        integer,
  result         text,
  body_sha256    bytea,
  defect         text,
  primary key (topic, partition, log_offset)
);
insert into outrider_audit.record_unchained
select topic, partition, log_offset, logged_at, recorded_at, delivery_id, destination_id, dispatch_seq, attempt, result,
       body_sha256, defect
from outrider_audit.record
on conflict do nothing;

drop function outrider_audit.expire, outrider_audit.ensure_partitions, outrider_audit.append, outrider_audit.move_tip,
  outrider_audit.link, outrider_audit.content(outrider_audit.tombstone), outrider_audit.content(outrider_audit.record),
  outrider_audit.microseconds;
drop table outrider_audit.tombstone, outrider_audit.anchor, outrider_audit.tip, outrider_audit.record;
drop function outrider_audit.refuse;
alter table outrider_audit.record_unchained rename to record;
alter index outrider_audit.record_unchained_pkey rename to record_pkey;
create index record_by_delivery on outrider_audit.record (delivery_id);

revoke usage on schema outrider_audit from outrider_reconciler;
grant insert on outrider_audit.record to outrider_auditor;
grant select on outrider_audit.record to outrider_operator;
