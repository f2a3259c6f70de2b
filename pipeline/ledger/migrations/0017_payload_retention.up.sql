-- Retention of payloads: an event whose deliveries have all been terminal for long enough loses its bytes and keeps its row,
-- with their hash. So its identity stays taken: the same event again is nothing new, and other bytes under it are refused.

-- Catalogue only, no row is written. From here on a trigger does what the generated column did, since the hash outlives
-- what it is of.
alter table outrider.event alter column payload_sha256 drop expression;
alter table outrider.event alter column payload drop not null;
alter table outrider.event add column payload_removed_at timestamptz;
-- All rows that are there fit: nothing is read.
alter table outrider.event add constraint event_payload_check
  check ((payload is null) = (payload_removed_at is not null)) not valid;

create function outrider.hash_payload() returns trigger language plpgsql as $$
begin
  new.payload_sha256 := sha256(new.payload);
  return new;
end
$$;
create trigger hash_payload before insert on outrider.event for each row
  when (new.payload is not null) execute function outrider.hash_payload();
-- Also in sessions that apply or load rows and fire no other trigger.
alter table outrider.event enable always trigger hash_payload;

-- What retention looks at, the oldest first.
create index event_with_payload on outrider.event (admitted_at, event_id) where payload is not null;

-- A terminal delivery is dispatched again only where there is something to send. Holds the event's row until the commit, so
-- that retention, which takes it for itself and then looks at the deliveries, comes before or after, never between.
-- Otherwise the row is left as it is, as if it were in another state.
create function outrider.need_payload() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform from outrider.event e where e.event_id = new.event_id and e.payload is not null for key share;
  return case when found then new end;
end
$$;
create trigger need_payload before update on outrider.delivery for each row
  when (old.settled_at is not null and new.settled_at is null) execute function outrider.need_payload();
revoke all on function outrider.hash_payload, outrider.need_payload from public;

-- As the function of the same name with one argument less, for a delivery that may have nothing to send any more.
create function outrider.replay_verdict(
  state text, attempt integer, last_outcome text, mode text, takes_cancelled boolean, has_payload boolean)
returns text language sql immutable parallel safe
return case
  when outrider.replay_verdict(state, attempt, last_outcome, mode, takes_cancelled) = 'replay' and not has_payload
    then 'payload_removed'
  else outrider.replay_verdict(state, attempt, last_outcome, mode, takes_cancelled) end;
revoke all on function outrider.replay_verdict(text, integer, text, text, boolean, boolean) from public;
grant execute on function outrider.replay_verdict(text, integer, text, text, boolean, boolean) to outrider_operator;

grant update (payload, payload_removed_at) on outrider.event to outrider_reconciler;

-- As in 0013, but that contents are compared by hash, and that what has lost its payload is not rebuilt.
create or replace function outrider.rebuild_findings(messages jsonb, payloads bytea[])
returns table (
  place integer, delivery_id text, destination_id text, event_id text, event_type text, content_type text, headers jsonb,
  payload bytea, dispatch_seq integer, logged_at timestamptz, finding text, state text, attempt integer)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select m.place, m.delivery_id, m.destination_id, m.event_id, m.event_type, m.content_type, coalesce(m.headers, '{}'),
         payloads[m.place], m.dispatch_seq, m.logged_at,
         case
           when d.delivery_id is not null and d.destination_id <> m.destination_id then 'foreign'
           when d.delivery_id is not null then case when d.dispatch_seq < m.dispatch_seq then 'behind' else 'known' end
           when num_nulls(m.event_id, m.event_type, m.content_type, payloads[m.place]) > 0 then 'incomplete'
           when m.delivery_id <> outrider.delivery_identity(m.event_id, m.destination_id)
             or m.message_id <> outrider.message_identity(m.delivery_id, m.dispatch_seq)::text then 'foreign'
           when not exists (select from outrider.destination x where x.destination_id = m.destination_id)
             then 'no_destination'
           when (e.payload_sha256, e.event_type, e.content_type) <> (sha256(payloads[m.place]), m.event_type, m.content_type)
             then 'other_event'
           when e.payload_removed_at is not null then 'payload_removed'
           else 'rebuild' end,
         d.state, d.attempt
  from jsonb_to_recordset(messages) as m (
    place integer, delivery_id text, destination_id text, event_id text, event_type text, content_type text, headers jsonb,
    message_id text, dispatch_seq integer, logged_at timestamptz)
  left join outrider.delivery d on d.delivery_id = m.delivery_id
  left join outrider.event e on e.event_id = m.event_id
$$;

-- As in 0004, but that payloads are compared by hash, and that one that was removed comes back for a new destination.
create or replace function outrider.admit(
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
      when earlier.payload_sha256 <> sha256(admit.payload) then 'payload'
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

  -- A payload that retention removed comes back where it is needed again: these are the same bytes.
  if earlier.payload_removed_at is not null
     and exists (select from unnest(targets) as t
                 where not exists (select from outrider.delivery d
                                   where d.event_id = admit.event_id and d.destination_id = t)) then
    update outrider.event e set payload = admit.payload, payload_removed_at = null where e.event_id = admit.event_id;
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
