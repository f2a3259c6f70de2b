-- What the audit group read from Kafka, keyed by its place there: reading again changes nothing.
create table outrider_audit.record (
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
  -- Why the message could not be understood; NULL for those that were.
  defect         text,
  primary key (topic, partition, log_offset)
);
create index record_by_delivery on outrider_audit.record (delivery_id);

grant insert on outrider_audit.record to outrider_auditor;
grant select on outrider_audit.record to outrider_operator;
