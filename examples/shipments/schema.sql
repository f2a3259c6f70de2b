-- What the business knows. An update is durable here before anybody asks for it to be sent.
create schema shipments;

create table shipments.update (
  shipment     text not null check (octet_length(shipment) between 1 and 200),
  version      integer not null check (version > 0),
  status       text not null check (octet_length(status) between 1 and 200),
  recorded_at  timestamptz not null default clock_timestamp(),
  -- Set by the commit that admits it, whichever path that is.
  announced_at timestamptz,
  primary key (shipment, version)
);
create index update_waiting on shipments.update (recorded_at) where announced_at is null;

create table shipments.subscriber (
  shipment       text not null,
  destination_id text not null,
  primary key (shipment, destination_id)
);

-- The identity of an update, the same on every path: a JSON array, so that no separator in an id can make two the same.
-- With the subscriber, which is the destination, it is the delivery's.
create function shipments.event_id(shipment text, version integer) returns text
language sql immutable strict as $$ select 'shipment ' || jsonb_build_array(shipment, version)::text $$;

-- The bytes, of what identifies and what was recorded, and of nothing that a clock or a transport adds.
create function shipments.body(shipment text, version integer, status text) returns text
language sql immutable strict as $$
  select jsonb_build_object('shipment', shipment, 'version', version, 'status', status)::text
$$;

create function shipments.subscribers(shipment text) returns text[]
language sql stable strict as $$
  select coalesce(array_agg(s.destination_id order by s.destination_id), '{}')
  from shipments.subscriber s where s.shipment = subscribers.shipment
$$;

-- Updates that nobody has asked to send for a while: the schedule was paused, or its call got lost. One page, taken off
-- what is due.
create function shipments.claim_waiting(page integer, refused text[], patience interval)
returns table (event_id text, event_type text, payload text, destinations text[], due_at timestamptz)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update shipments.update u
  set announced_at = clock_timestamp()
  where (u.shipment, u.version) in (
      select d.shipment, d.version from shipments.update d
      where d.announced_at is null
        and d.recorded_at <= clock_timestamp() - claim_waiting.patience
        and exists (select from shipments.subscriber s where s.shipment = d.shipment)
        and shipments.event_id(d.shipment, d.version) <> all (claim_waiting.refused)
      order by d.recorded_at
      limit claim_waiting.page
      for update skip locked)
  returning shipments.event_id(u.shipment, u.version), 'shipment.updated',
            shipments.body(u.shipment, u.version, u.status), shipments.subscribers(u.shipment), u.recorded_at
$$;
revoke all on function shipments.claim_waiting from public;
