-- What a destination says about answers and about the wire, secrets that are sealed, and more of each answer on record.

alter table outrider.destination
  -- {"404": "retry", "409": "success", "tls_failed": "dead"}: see pipeline/core/classify.py.
  add column answer_rules jsonb not null default '{}'
    check (jsonb_typeof(answer_rules) = 'object' and octet_length(answer_rules::text) <= 4096),
  -- Instead of the growing delays: one for each retry.
  add column retry_delays_seconds double precision[]
    check (cardinality(retry_delays_seconds) between 1 and 100
           and array_position(retry_delays_seconds, null) is null
           and 0.01 <= all (retry_delays_seconds) and 604800 >= all (retry_delays_seconds)),
  -- After 401 and 403; none: the first of them ends it.
  add column unauthorized_delays_seconds double precision[] not null default '{60,600,3600,21600}'
    check (cardinality(unauthorized_delays_seconds) <= 100
           and array_position(unauthorized_delays_seconds, null) is null
           and 0.01 <= all (unauthorized_delays_seconds) and 604800 >= all (unauthorized_delays_seconds)),
  -- Sent with every request.
  add column static_headers jsonb not null default '{}';

-- The rules of an event's headers hold for these too; the trace is the event's.
create function outrider.check_static_headers() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform outrider.check_headers(new.static_headers);
  if exists (select from jsonb_object_keys(new.static_headers) as k(name) where lower(k.name) in ('traceparent', 'tracestate')) then
    raise exception 'headers traceparent and tracestate belong to the event' using errcode = 'OU005';
  end if;
  return null;
end
$$;
revoke all on function outrider.check_static_headers from public;
create trigger check_static_headers after insert or update of static_headers on outrider.destination
  for each row when (new.static_headers <> '{}') execute function outrider.check_static_headers();
-- The API's statement names them, and leaves them as they are.
grant update (answer_rules, retry_delays_seconds, unauthorized_delays_seconds, static_headers)
  on outrider.destination to outrider_api;
-- What it pings it loads as a worker does.
grant select on outrider.destination_pace to outrider_api;
grant execute on function outrider.rate_share to outrider_api;

-- Answers 401 and 403 of a delivery; they have a schedule of their own.
alter table outrider.delivery add column unauthorized integer not null default 0;
grant update (unauthorized) on outrider.delivery to outrider_worker;

-- Sealed values are opened by who has the key; see pipeline/core/sealing.py.
alter table outrider.destination_secret
  drop constraint destination_secret_secret_check,
  add constraint destination_secret_secret_check
    check (secret ~ '^(whsec|whsk)_[A-Za-z0-9+/]+=*$' or secret ~ '^sealed:1:[A-Za-z0-9_-]{1,32}:[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$'),
  -- v1: HMAC with a secret that both sides hold. v1a: ed25519; receivers hold the public half.
  add column scheme text not null default 'v1' check (scheme in ('v1', 'v1a')),
  add column public_key text check (public_key ~ '^whpk_[A-Za-z0-9+/]+=*$'),
  add constraint destination_secret_public_key check ((scheme = 'v1a') = (public_key is not null));

-- How a destination is told who we are, and whom it is believed to be. PEM texts; the key and the authorization are secrets.
create table outrider.destination_credential (
  destination_id     text primary key references outrider.destination on delete cascade,
  -- The header as a whole, which is secret, and its kind, which is not.
  authorization_value text check (octet_length(authorization_value) <= 16384),
  authorization_kind  text check (authorization_kind in ('Basic', 'Bearer')),
  ca                 text check (octet_length(ca) <= 262144),
  client_certificate text check (octet_length(client_certificate) <= 65536),
  client_key         text check (octet_length(client_key) <= 65536),
  changed_at         timestamptz not null default clock_timestamp(),
  check ((authorization_value is null) = (authorization_kind is null)),
  check ((client_certificate is null) = (client_key is null))
);
grant select on outrider.destination_credential to outrider_worker, outrider_operator, outrider_api;
grant insert, update, delete on outrider.destination_credential to outrider_operator;

-- More of the last answer, and where the time went: NULL for what did not happen. On a connection that was kept nothing is
-- connected, and an address needs no lookup. first_byte: from the request to the end of the answer's header.
alter table outrider.delivery_attempt
  add column response_headers jsonb,
  add column dns_seconds double precision,
  add column connect_seconds double precision,
  add column tls_seconds double precision,
  add column first_byte_seconds double precision;

-- A receiver that answers 410 is switched off by the worker, on the record.
grant update (enabled, disabled_reason, updated_at) on outrider.destination to outrider_worker;
