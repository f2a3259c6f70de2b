-- The ledger: durable rows that decide what is due. See "The life of a delivery" in docs/design.md.

create table outrider.event (
  event_id        text primary key,
  event_type      text not null,
  content_type    text not null,
  payload         bytea not null,
  payload_sha256  bytea not null generated always as (sha256(payload)) stored,
  headers         jsonb not null default '{}',
  -- Named destinations, or those subscribed at the time: a repeated call resolves nothing anew.
  by_subscription boolean not null,
  admitted_by     name not null default session_user,
  admitted_at     timestamptz not null default clock_timestamp()
);
-- Payloads are often compressed already, and are read back whole.
alter table outrider.event alter column payload set storage external;

create table outrider.destination (
  destination_id            text primary key check (destination_id ~ '^[[:print:]]{1,200}$'),
  url                       text not null check (url ~ '^https?://' and octet_length(url) <= 2048),
  enabled                   boolean not null default true,
  disabled_reason           text,
  start_rate_per_second     double precision not null default 50 check (start_rate_per_second between 0.0001 and 100000),
  burst                     integer not null default 50 check (burst between 1 and 100000),
  concurrency               integer not null default 16 check (concurrency between 1 and 10000),
  timeout_seconds           double precision not null default 20 check (timeout_seconds between 0.1 and 300),
  retry_first_delay_seconds double precision not null default 10 check (retry_first_delay_seconds between 0.01 and 86400),
  retry_factor              double precision not null default 3 check (retry_factor between 1 and 100),
  retry_max_delay_seconds   double precision not null default 21600 check (retry_max_delay_seconds between 0.01 and 604800),
  retry_max_attempts        integer not null default 20 check (retry_max_attempts between 1 and 1000),
  retry_max_age_seconds     double precision not null default 432000 check (retry_max_age_seconds between 0.01 and 31536000),
  -- Private, loopback and link-local addresses are refused unless one of these networks holds them.
  allowed_networks          cidr[] not null default '{}',
  created_at                timestamptz not null default clock_timestamp(),
  updated_at                timestamptz not null default clock_timestamp()
);

-- What changes with each claim lives apart from the settings: small rows, and no foreign key points here.
create table outrider.destination_pace (
  destination_id text primary key references outrider.destination on delete cascade,
  tokens         double precision not null,
  refilled_at    timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

create function outrider.start_pace() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into outrider.destination_pace (destination_id, tokens) values (new.destination_id, new.burst);
  return null;
end
$$;
revoke all on function outrider.start_pace from public;
create trigger start_pace after insert on outrider.destination for each row execute function outrider.start_pace();

create table outrider.destination_secret (
  secret_id      text primary key default 'key_' || replace(gen_random_uuid()::text, '-', ''),
  destination_id text not null references outrider.destination on delete cascade,
  secret         text not null check (secret ~ '^whsec_[A-Za-z0-9+/]+=*$'),
  created_at     timestamptz not null default clock_timestamp(),
  -- NULL: the current one. After a rotation the previous one signs too, until then.
  valid_until    timestamptz
);
create index destination_secret_by_destination on outrider.destination_secret (destination_id);

create table outrider.subscription (
  destination_id text not null references outrider.destination on delete cascade,
  -- 'media.processed', 'media.*' for all that begins with 'media.', or '*'.
  event_type     text not null check (event_type ~ '^([^*[:cntrl:]]+|[^*[:cntrl:]]+\.\*|\*)$'),
  created_at     timestamptz not null default clock_timestamp(),
  primary key (destination_id, event_type)
);

create table outrider.delivery (
  delivery_id     text primary key,
  event_id        text not null references outrider.event,
  destination_id  text not null references outrider.destination,
  state           text not null check (state in ('pending', 'enqueued', 'leased', 'succeeded', 'dead')),
  attempt         integer not null default 0,
  dispatch_seq    integer not null default 0,
  -- Dispatches since a worker last touched the row; each doubles the time the next may take.
  dispatches_lost integer not null default 0,
  deliver_at      timestamptz,
  next_attempt_at timestamptz,
  lost_after      timestamptz,
  leased_at       timestamptz,
  lease_until     timestamptz,
  lease_owner     text,
  waiting_reason  text,
  last_outcome    text,
  last_status     integer,
  last_error      text,
  created_at      timestamptz not null default clock_timestamp(),
  settled_at      timestamptz,
  unique (event_id, destination_id),
  -- In every state that is not terminal there is a time after which the reconciler looks.
  check ((state = 'pending') = (next_attempt_at is not null)),
  check ((state = 'enqueued') = (lost_after is not null)),
  check (num_nonnulls(leased_at, lease_until, lease_owner) = case state when 'leased' then 3 else 0 end),
  check ((state in ('succeeded', 'dead')) = (settled_at is not null))
) with (fillfactor = 80);

-- Apart from the primary key no index has delivery_id, and the predicates are those that the statements spell out.
-- While the tables are nearly empty every index looks equally cheap, a plan is made for a session's lifetime, and one
-- that found a delivery by reading all of another index would be kept as the table fills.
create index delivery_due on outrider.delivery (destination_id, next_attempt_at) where state = 'pending';
create index delivery_in_transport on outrider.delivery (destination_id, lost_after) where state = 'enqueued';
create index delivery_leased on outrider.delivery (destination_id, lease_until) where state = 'leased';
create index delivery_by_destination on outrider.delivery (destination_id, created_at);
create index delivery_unsettled on outrider.delivery (created_at) where settled_at is null;
create index delivery_dead on outrider.delivery (settled_at) where state = 'dead';

-- One row for each handing of a delivery to Kafka. The connector publishes inserts, and nothing else.
create table outrider.dispatch_outbox (
  outbox_id      bigint generated always as identity,
  created_at     timestamptz not null default clock_timestamp(),
  message_id     uuid not null,
  delivery_id    text not null,
  dispatch_seq   integer not null,
  destination_id text not null,
  event_id       text not null,
  event_type     text not null,
  content_type   text not null,
  headers        jsonb not null,
  payload        bytea not null,
  reason         text not null check (reason in ('admitted', 'due', 'lease_expired', 'lost', 'replay')),
  primary key (outbox_id, created_at)
) partition by range (created_at);
alter table outrider.dispatch_outbox alter column payload set storage external;
create index dispatch_outbox_by_delivery on outrider.dispatch_outbox (delivery_id);

-- One row for each attempt that ended, in the commit that settled it.
create table outrider.delivery_attempt (
  attempt_id          bigint generated always as identity,
  recorded_at         timestamptz not null default clock_timestamp(),
  delivery_id         text not null,
  event_id            text not null,
  event_type          text not null,
  destination_id      text not null,
  attempt             integer not null,
  dispatch_seq        integer not null,
  worker_id           text not null,
  -- What the attempt did to the delivery; 'late' changed nothing.
  result              text not null check (result in ('succeeded', 'retry', 'dead', 'late', 'lease_expired')),
  outcome             text not null,
  status              integer,
  -- The receiver may have applied the event although no success was seen.
  ambiguous           boolean not null,
  error               text,
  response_excerpt    bytea,
  retry_after_seconds double precision,
  next_attempt_at     timestamptz,
  key_ids             text[] not null default '{}',
  payload_sha256      bytea not null,
  started_at          timestamptz not null,
  duration_seconds    double precision not null,
  primary key (attempt_id, recorded_at)
) partition by range (recorded_at);
create index delivery_attempt_by_delivery on outrider.delivery_attempt (delivery_id, attempt);

create table outrider.run (
  run_id      uuid primary key default gen_random_uuid(),
  kind        text not null,
  woken_by    text not null,
  operator    text not null default session_user,
  reason      text,
  started_at  timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  counts      jsonb not null default '{}',
  error       text
);
create index run_by_time on outrider.run (kind, started_at);

-- What admission and dispatch must agree on. One row; change it with:
--   update outrider.ledger_setting set payload_bytes_max = 1048576;
create table outrider.ledger_setting (
  only_row               boolean primary key default true check (only_row),
  -- The topics take records of 4 MiB; what goes with a payload needs less than one of them.
  payload_bytes_max      integer not null default 262144 check (payload_bytes_max between 1 and 3145728),
  destinations_max       integer not null default 1000 check (destinations_max between 1 and 100000),
  -- Time after which a dispatch that no worker has claimed counts as lost; doubles with each repeat.
  transport_timeout_seconds double precision not null default 120
    check (transport_timeout_seconds between 0.001 and 86400)
);
insert into outrider.ledger_setting default values;
