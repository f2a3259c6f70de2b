-- Identities. Each part is preceded by its length, so that no separator can make two pairs alike:
-- ("a:b", "c") and ("a", "b:c") hash different bytes. pipeline/core/ids.py computes the same.
--
-- Single expressions, stable and without a setting of their own: so the planner puts them in place of the call,
-- which costs an admission some 50 microseconds less than calling them. They name no table.
create function outrider.identity_part(part text) returns bytea language sql stable strict parallel safe
return pg_catalog.int4send(pg_catalog.octet_length(pg_catalog.convert_to(part, 'UTF8')))
  || pg_catalog.convert_to(part, 'UTF8');

create function outrider.delivery_identity(event_id text, destination_id text) returns text
language sql stable strict parallel safe
return 'dlv_' || pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(
  outrider.identity_part('delivery') || outrider.identity_part(event_id) || outrider.identity_part(destination_id)
), 1, 16), 'hex');

create function outrider.message_identity(delivery_id text, dispatch_seq integer) returns uuid
language sql stable strict parallel safe
return pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(
  outrider.identity_part('message') || outrider.identity_part(delivery_id)
    || outrider.identity_part(dispatch_seq::text)
), 1, 16), 'hex')::uuid;

-- Bounded, because a time that is not meant would be a delivery that waits for ever, and clients cannot show all
-- that PostgreSQL can store.
create function outrider.is_deliverable_at(moment timestamptz) returns boolean language sql stable strict parallel safe
return moment between timestamptz '2000-01-01 00:00:00+00' and pg_catalog.statement_timestamp() + interval '10 years';

-- Raises OU005 for the first header that may not be sent: names are HTTP tokens (RFC 9110, 5.6.2), values are
-- printable ASCII, and what the sender itself sets is reserved.
create function outrider.check_headers(headers jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  name text;
  value jsonb;
  names text[] := '{}';
begin
  if headers is null or jsonb_typeof(headers) <> 'object' then
    raise exception 'headers must be a JSON object of strings'
      using errcode = 'OU005', hint = 'pass {"x-name": "value"}, or {} for none';
  end if;
  for name, value in select * from jsonb_each(headers) loop
    if name !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,128}$' then
      raise exception 'header name % is not an HTTP token of at most 128 characters', to_json(name)
        using errcode = 'OU005';
    end if;
    if lower(name) = any (names) then
      raise exception 'header % is given twice', to_json(name) using errcode = 'OU005';
    end if;
    names := names || lower(name);
    if lower(name) ~ '^(webhook-.*|idempotency-key|content-type|content-length|content-encoding|transfer-encoding|host|connection|keep-alive|upgrade|te|trailer|expect|proxy-.*|authorization|cookie|user-agent|accept-encoding|outrider-.*)$' then
      raise exception 'header % is set by the sender', to_json(name)
        using errcode = 'OU005', hint = 'choose another name, such as x-...';
    end if;
    if jsonb_typeof(value) <> 'string' then
      raise exception 'header % must have a string as its value', to_json(name) using errcode = 'OU005';
    end if;
    if value #>> '{}' !~ '^[\x20-\x7e]*$' then
      raise exception 'header % has a control character or one outside ASCII in its value', to_json(name)
        using errcode = 'OU005', hint = 'encode the value, for example as percent-encoding';
    end if;
    if length(value #>> '{}') > 4096 then
      raise exception 'header % has a value of more than 4096 characters', to_json(name) using errcode = 'OU005';
    end if;
  end loop;
  if octet_length(headers::text) > 32768 then
    raise exception 'the headers of an event take at most 32768 bytes together, these take %',
      octet_length(headers::text) using errcode = 'OU005';
  end if;
  if cardinality(names) > 32 then
    raise exception 'an event has at most 32 headers, this one has %', cardinality(names) using errcode = 'OU005';
  end if;
end
$$;

-- Admits one event for its destinations, inside the caller's transaction.
--
-- Returns one row for each delivery, with created = whether this call made it. The same identity again changes
-- nothing. Errors, by SQLSTATE; after any of them nothing has changed:
--   OU001  the event was admitted before with another payload, type, content type or deliver_at
--   OU002  a destination is unknown
--   OU003  a destination is disabled
--   OU004  the payload is above the limit
--   OU005  an argument is malformed; the message names it
-- Headers are not part of the identity: those of the first call stand.
create function outrider.admit(
  event_id     text,
  event_type   text,
  payload      bytea,
  content_type text default 'application/json',
  destinations text[] default null,
  deliver_at   timestamptz default null,
  headers      jsonb default '{}'
) returns table (delivery_id text, destination_id text, created boolean, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Planning each statement anew for its arrays takes longer than running it.
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  limits outrider.ledger_setting;
  earlier outrider.event;
  is_new boolean;
  by_subscription constant boolean := admit.destinations is null;
  targets text[];
  offender text;
  moment timestamptz;
  is_due boolean;
begin
  select * into strict limits from outrider.ledger_setting;

  if admit.event_id is null or admit.event_id = '' or octet_length(admit.event_id) > 512 then
    raise exception 'event_id must have 1 to 512 bytes'
      using errcode = 'OU005', hint = 'use an id that your change has already, such as its primary key and version';
  end if;
  if admit.event_type is null or admit.event_type !~ '^[^[:cntrl:]*]+$' or length(admit.event_type) > 256 then
    raise exception 'event_type must have 1 to 256 characters, none of them a control character or *'
      using errcode = 'OU005';
  end if;
  if admit.content_type is null or admit.content_type !~ '^[\x21-\x7e][\x20-\x7e]*$'
     or length(admit.content_type) > 256 then
    raise exception 'content_type must have 1 to 256 printable ASCII characters' using errcode = 'OU005';
  end if;
  if admit.payload is null then
    raise exception 'payload must not be NULL' using errcode = 'OU005', hint = 'an empty payload is ''''::bytea';
  end if;
  if octet_length(admit.payload) > limits.payload_bytes_max then
    raise exception 'payload has % bytes, the limit is %', octet_length(admit.payload), limits.payload_bytes_max
      using errcode = 'OU004', hint = 'send a reference to the content, or raise ledger_setting.payload_bytes_max (at most 3 MiB)';
  end if;
  if admit.deliver_at is not null and not outrider.is_deliverable_at(admit.deliver_at) then
    raise exception 'deliver_at must lie between the year 2000 and ten years from now' using errcode = 'OU005';
  end if;
  perform outrider.check_headers(admit.headers);
  if not by_subscription then
    if cardinality(admit.destinations) = 0 or array_position(admit.destinations, null) is not null then
      raise exception 'destinations must name at least one destination, and no NULL'
        using errcode = 'OU005', hint = 'pass NULL for the subscribed ones';
    end if;
    if cardinality(admit.destinations) > limits.destinations_max then
      raise exception 'an event has at most % destinations, this call names %',
        limits.destinations_max, cardinality(admit.destinations) using errcode = 'OU005';
    end if;
  end if;

  -- A concurrent caller with the same event waits here until the first one commits or rolls back.
  insert into outrider.event (event_id, event_type, content_type, payload, headers, by_subscription)
  values (admit.event_id, admit.event_type, admit.content_type, admit.payload, admit.headers, by_subscription)
  on conflict do nothing;
  is_new := found;

  if not is_new then
    -- One caller at a time for an event that exists, so that each sees what the other made.
    select * into strict earlier from outrider.event e where e.event_id = admit.event_id for no key update;
    offender := case
      when earlier.payload <> admit.payload then 'payload'
      when earlier.event_type <> admit.event_type then 'event_type'
      when earlier.content_type <> admit.content_type then 'content_type'
    end;
    if offender is not null then
      raise exception 'event % was admitted before with another %', to_json(admit.event_id), offender
        using errcode = 'OU001', hint = 'a changed fact is a new event: give it its own event_id';
    end if;
    if exists (select from outrider.delivery d
               where d.event_id = admit.event_id
                 and (by_subscription or d.destination_id = any (admit.destinations))
                 and d.deliver_at is distinct from admit.deliver_at) then
      raise exception 'event % was admitted before with another deliver_at', to_json(admit.event_id)
        using errcode = 'OU001', hint = 'a changed fact is a new event: give it its own event_id';
    end if;
  end if;

  if not by_subscription then
    targets := array(select distinct t from unnest(admit.destinations) as t order by t);
    select t into offender from unnest(targets) as t
    where not exists (select from outrider.destination x where x.destination_id = t)
    order by t limit 1;
    if found then
      raise exception 'destination % is unknown', to_json(offender)
        using errcode = 'OU002', hint = 'add it first: outrider destination add';
    end if;
    select t into offender from unnest(targets) as t
    join outrider.destination x on x.destination_id = t
    where not x.enabled
      and not exists (select from outrider.delivery d
                      where d.event_id = admit.event_id and d.destination_id = t)
    order by t limit 1;
    if found then
      raise exception 'destination % is disabled', to_json(offender)
        using errcode = 'OU003', hint = 'enable it first: outrider destination enable';
    end if;
  elsif is_new or not earlier.by_subscription then
    -- A subscriber that is disabled for now keeps its events: they wait until it is enabled.
    targets := array(
      select distinct s.destination_id from outrider.subscription s
      where s.event_type in (admit.event_type, '*')
         or (right(s.event_type, 2) = '.*' and starts_with(admit.event_type, left(s.event_type, -1)))
      union
      select d.destination_id from outrider.delivery d where d.event_id = admit.event_id
      order by 1
    );
    if cardinality(targets) > limits.destinations_max then
      raise exception 'an event has at most % destinations, % are subscribed to %',
        limits.destinations_max, cardinality(targets), to_json(admit.event_type) using errcode = 'OU005';
    end if;
  else
    targets := array(select d.destination_id from outrider.delivery d
                     where d.event_id = admit.event_id order by 1);
  end if;

  moment := clock_timestamp();
  is_due := admit.deliver_at is null or admit.deliver_at <= moment;

  return query
  with made as (
    insert into outrider.delivery as v (
      delivery_id, event_id, destination_id, state, dispatch_seq, deliver_at, next_attempt_at, lost_after, waiting_reason)
    select outrider.delivery_identity(admit.event_id, x.destination_id), admit.event_id, x.destination_id,
           case when is_due and x.enabled then 'enqueued' else 'pending' end,
           case when is_due and x.enabled then 1 else 0 end,
           admit.deliver_at,
           case when not is_due then admit.deliver_at when not x.enabled then moment end,
           case when is_due and x.enabled
                then moment + make_interval(secs => limits.transport_timeout_seconds) end,
           case when not is_due then 'scheduled' when not x.enabled then 'destination_disabled' end
    from outrider.destination x
    where x.destination_id = any (targets)
    order by x.destination_id
    on conflict do nothing
    returning v.delivery_id, v.destination_id, v.state, v.dispatch_seq
  ), dispatched as (
    insert into outrider.dispatch_outbox (
      message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
    select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
           e.event_id, e.event_type, e.content_type, e.headers, e.payload, 'admitted'
    from made m
    join outrider.event e on e.event_id = admit.event_id
    where m.state = 'enqueued'
  )
  select m.delivery_id, m.destination_id, true, m.state from made m
  union all
  select d.delivery_id, d.destination_id, false, d.state from outrider.delivery d
  where d.event_id = admit.event_id
    and d.destination_id = any (targets)
    and not exists (select from made m where m.delivery_id = d.delivery_id)
  order by 2;
end
$$;

-- Where the deliveries of one event stand. An application sees the events that it admitted itself.
create function outrider.delivery_status(event_id text)
returns table (delivery_id text, destination_id text, state text, attempt integer, waiting_reason text,
               looked_at_next timestamptz, last_outcome text, last_status integer,
               created_at timestamptz, settled_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select d.delivery_id, d.destination_id, d.state, d.attempt, d.waiting_reason,
         coalesce(d.next_attempt_at, d.lease_until, d.lost_after), d.last_outcome, d.last_status,
         d.created_at, d.settled_at
  from outrider.event e
  join outrider.delivery d on d.event_id = e.event_id
  where e.event_id = delivery_status.event_id and e.admitted_by = session_user
  order by d.destination_id
$$;

revoke all on function
  outrider.identity_part, outrider.delivery_identity, outrider.message_identity, outrider.check_headers,
  outrider.is_deliverable_at,
  outrider.admit, outrider.delivery_status
  from public;
grant execute on function outrider.admit, outrider.delivery_status to outrider_application, outrider_operator;
grant execute on function outrider.identity_part, outrider.delivery_identity, outrider.message_identity
  to outrider_worker, outrider_operator;
