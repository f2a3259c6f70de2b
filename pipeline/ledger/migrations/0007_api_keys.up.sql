-- Keys of the HTTP API, and the role of the component that serves it.

do $$
begin
  create role outrider_api nologin;
exception when duplicate_object or unique_violation then
  null;
end
$$;

create table outrider.api_key (
  -- The public part of the key: what a request names, and what logs and lists show.
  key_id              text primary key check (key_id ~ '^[a-z0-9]{16}$'),
  name                text not null check (name ~ '^[[:print:]]{1,200}$'),
  -- Of the key's 256 random bits. A slow hash protects secrets that can be guessed; these cannot.
  secret_sha256       bytea not null check (octet_length(secret_sha256) = 32),
  scopes              text[] not null check (cardinality(scopes) > 0 and scopes <@ array['admit', 'read', 'operate']),
  requests_per_second double precision not null check (requests_per_second between 0.01 and 1000000),
  bytes_per_second    double precision not null check (bytes_per_second between 1 and 1e12),
  in_flight_max       integer not null check (in_flight_max between 1 and 100000),
  created_at          timestamptz not null default clock_timestamp(),
  created_by          text not null,
  expires_at          timestamptz check (isfinite(expires_at)),
  revoked_at          timestamptz,
  revoked_by          text,
  -- Coarse: written about once a minute for all keys together.
  last_used_at        timestamptz,
  check ((revoked_at is null) = (revoked_by is null))
);

-- GET /v1/events goes from the newest to the oldest.
create index event_by_time on outrider.event (admitted_at, event_id);

grant select, insert, update (revoked_at, revoked_by) on outrider.api_key to outrider_operator;

-- api: admits through admit_many, shows everything but payloads and what receivers answered, manages receivers.
-- It makes no keys, moves no delivery and changes no setting of the ledger.
grant usage on schema outrider to outrider_api;
grant select, update (last_used_at) on outrider.api_key to outrider_api;
grant select (event_id, event_type, content_type, payload_sha256, headers, by_subscription, admitted_by, admitted_at)
  on outrider.event to outrider_api;
grant select (attempt_id, recorded_at, delivery_id, event_id, event_type, destination_id, attempt, dispatch_seq, worker_id,
              result, outcome, status, ambiguous, error, retry_after_seconds, next_attempt_at, key_ids, payload_sha256,
              started_at, duration_seconds)
  on outrider.delivery_attempt to outrider_api;
grant select on outrider.delivery, outrider.ledger_setting, outrider.subscription, outrider.destination,
                outrider.destination_secret
  to outrider_api;
grant insert (destination_id, url) on outrider.destination to outrider_api;
grant update (url, enabled, disabled_reason, start_rate_per_second, burst, concurrency, timeout_seconds,
              retry_first_delay_seconds, retry_factor, retry_max_delay_seconds, retry_max_attempts, retry_max_age_seconds,
              allowed_networks, updated_at)
  on outrider.destination to outrider_api;
grant insert (destination_id, event_type), delete on outrider.subscription to outrider_api;
grant insert (destination_id, secret), update (valid_until) on outrider.destination_secret to outrider_api;
grant insert (kind, woken_by, operator, reason, counts, finished_at), select on outrider.run to outrider_api;
