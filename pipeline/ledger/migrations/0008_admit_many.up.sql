-- Admits many events in one statement, for the API's group commit. Only the API calls it: applications admit inside
-- their own transactions, with outrider.admit.
--
-- events is an array of objects with the arguments of outrider.admit by name, but for the payloads, which are bytes and
-- come beside it. Both have one element for each event, and its place counts from 1.
--
-- One row comes back for each delivery of an event, or one without delivery_id where nobody is subscribed. An event that
-- is refused has one row with the SQLSTATE, message and hint of outrider.admit, and changes nothing; the others stand.
--
-- Plain events, which is most of them, are written together, at a quarter of the cost of as many calls: new, well-formed,
-- and for destinations that take them. Whatever is not plainly so goes through outrider.admit alone behind a
-- savepoint, so that each refusal, repeat and conflict has one place that decides it.
--
-- Events are taken up in the order of their ids, so that two calls with the same events do not wait for each other in a
-- circle. A caller who holds one of them longer than lock_timeout fails the call; then nothing has changed.
create function outrider.admit_many(
  events   jsonb,
  payloads bytea[]
) returns table (place integer, delivery_id text, destination_id text, created boolean, state text,
                 refusal text, message text, hint text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
-- The planner expects one row of each common table expression below, and would join two hundred with two hundred by
-- looking at each pair.
set enable_nestloop = off
set lock_timeout = '300ms'
as $$
#variable_conflict use_column
declare
  limits outrider.ledger_setting;
  moment timestamptz;
  written integer[];
  made_places integer[];
  made_delivery_ids text[];
  made_destination_ids text[];
  made_states text[];
  item record;
begin
  select * into strict limits from outrider.ledger_setting;
  moment := clock_timestamp();

  with item as (
    select i.*
    from rows from (
      jsonb_to_recordset(admit_many.events)
        as (event_id text, event_type text, content_type text, headers jsonb, destinations text[], deliver_at timestamptz),
      unnest(admit_many.payloads)
    ) with ordinality as i(event_id, event_type, content_type, headers, destinations, deliver_at, payload, place)
  ), well_formed as (
    -- Stricter than outrider.admit where that is simpler. Of events with the same id the first one counts.
    select distinct on (i.event_id) i.*, i.destinations is not null as is_named,
           i.deliver_at is null or i.deliver_at <= moment as is_due
    from item i
    where octet_length(i.event_id) between 1 and 512
      and i.event_type ~ '^[^[:cntrl:]*]+$' and length(i.event_type) <= 256
      and i.content_type ~ '^[\x21-\x7e][\x20-\x7e]*$' and length(i.content_type) <= 256
      and octet_length(i.payload) <= limits.payload_bytes_max
      and (i.deliver_at is null or outrider.is_deliverable_at(i.deliver_at))
      and octet_length(i.headers::text) <= 4096
      and i.headers::text ~ '^\{("ce-[a-z0-9]+": "[\x20\x21\x23-\x5b\x5d-\x7e]*"(, )?)*\}$'
      and not exists (select from jsonb_object_keys(i.headers) as k(name)
                      having count(*) > 32 or max(octet_length(k.name)) > 128)
    order by i.event_id, i.place
  ), kind as (
    select distinct w.event_type from well_formed w where not w.is_named
  ), subscribed as (
    select distinct k.event_type, s.destination_id
    from kind k
    join outrider.subscription s
      on s.event_type in (k.event_type, '*')
         or (right(s.event_type, 2) = '.*' and starts_with(k.event_type, left(s.event_type, -1)))
  ), target as (
    select w.place, n.destination_id, count(*) as mentions,
           (select x.enabled from outrider.destination x where x.destination_id = n.destination_id) as enabled
    from well_formed w
    cross join unnest(w.destinations) as n(destination_id)
    where w.is_named
    group by w.place, n.destination_id
    union all
    select w.place, s.destination_id, 1,
           (select x.enabled from outrider.destination x where x.destination_id = s.destination_id)
    from well_formed w
    join subscribed s on s.event_type = w.event_type
    where not w.is_named
  ), counted as (
    -- Not enabled: disabled, or unknown.
    select t.place, sum(t.mentions) as mentions, bool_and(coalesce(t.enabled, false)) as all_enabled
    from target t
    group by t.place
  ), plain as (
    select w.*
    from well_formed w
    left join counted c on c.place = w.place
    where coalesce(c.mentions, 0) <= limits.destinations_max
      and (c.all_enabled or not w.is_named)
  ), made_event as (
    insert into outrider.event as v (event_id, event_type, content_type, payload, headers, by_subscription)
    select p.event_id, p.event_type, p.content_type, p.payload, p.headers, not p.is_named
    from plain p
    order by p.event_id
    on conflict do nothing
    returning v.event_id
  ), made as (
    insert into outrider.delivery as v (
      delivery_id, event_id, destination_id, state, dispatch_seq, deliver_at, next_attempt_at, lost_after, waiting_reason)
    select outrider.delivery_identity(p.event_id, t.destination_id), p.event_id, t.destination_id,
           case when p.is_due and t.enabled then 'enqueued' else 'pending' end,
           case when p.is_due and t.enabled then 1 else 0 end,
           p.deliver_at,
           case when not p.is_due then p.deliver_at when not t.enabled then moment end,
           case when p.is_due and t.enabled
                then moment + make_interval(secs => limits.transport_timeout_seconds) end,
           case when not p.is_due then 'scheduled' when not t.enabled then 'destination_disabled' end
    from made_event m
    join plain p on p.event_id = m.event_id
    join target t on t.place = p.place
    order by p.event_id, t.destination_id
    returning v.delivery_id, v.event_id, v.destination_id, v.state, v.dispatch_seq
  ), dispatched as (
    insert into outrider.dispatch_outbox (
      message_id, delivery_id, dispatch_seq, destination_id, event_id, event_type, content_type, headers, payload, reason)
    select outrider.message_identity(m.delivery_id, m.dispatch_seq), m.delivery_id, m.dispatch_seq, m.destination_id,
           p.event_id, p.event_type, p.content_type, p.headers, p.payload, 'admitted'
    from made m
    join plain p on p.event_id = m.event_id
    where m.state = 'enqueued'
  )
  select array_agg(distinct p.place::integer),
         array_agg(p.place::integer), array_agg(d.delivery_id), array_agg(d.destination_id), array_agg(d.state)
  into written, made_places, made_delivery_ids, made_destination_ids, made_states
  from made_event m
  join plain p on p.event_id = m.event_id
  left join made d on d.event_id = m.event_id;

  return query
  select r.place, r.delivery_id, r.destination_id, true, r.state, null::text, null::text, null::text
  from unnest(made_places, made_delivery_ids, made_destination_ids, made_states)
       as r(place, delivery_id, destination_id, state);

  if cardinality(written) = cardinality(admit_many.payloads) then
    return;
  end if;

  created := false;
  for item in
    select i.*
    from rows from (
      jsonb_to_recordset(admit_many.events)
        as (event_id text, event_type text, content_type text, headers jsonb, destinations text[], deliver_at timestamptz),
      unnest(admit_many.payloads)
    ) with ordinality as i(event_id, event_type, content_type, headers, destinations, deliver_at, payload, place)
    where written is null or i.place <> all (written)
    order by i.event_id, i.place
  loop
    begin
      return query
      select item.place::integer, a.delivery_id, a.destination_id, a.created, a.state, null::text, null::text, null::text
      from outrider.admit(
        item.event_id, item.event_type, item.payload, item.content_type, item.destinations, item.deliver_at,
        item.headers
      ) a;
      if not found then
        place := item.place;
        return next;
      end if;
    exception
      when sqlstate 'OU001' or sqlstate 'OU002' or sqlstate 'OU003' or sqlstate 'OU004' or sqlstate 'OU005' then
        place := item.place;
        get stacked diagnostics refusal = returned_sqlstate, message = message_text, hint = pg_exception_hint;
        return next;
        refusal := null;
        message := null;
        hint := null;
    end;
  end loop;
end
$$;

revoke all on function outrider.admit_many from public;
grant execute on function outrider.admit_many to outrider_api;
