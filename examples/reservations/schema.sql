-- A version of a reservation is held until it is confirmed or its time is over, and then it is settled for good. To hold it
-- longer is a new version.
create schema reservations;

create table reservations.reservation (
  reservation_id text not null check (octet_length(reservation_id) between 1 and 200),
  version        integer not null check (version > 0),
  state          text not null default 'held' check (state in ('held', 'confirmed', 'expired')),
  expires_at     timestamptz not null,
  settled_at     timestamptz check ((settled_at is null) = (state = 'held')),
  primary key (reservation_id, version)
);
create index reservation_held on reservations.reservation (expires_at) where state = 'held';

create function reservations.keep_what_is_agreed() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if (new.reservation_id, new.version, new.expires_at) is distinct from (old.reservation_id, old.version, old.expires_at) then
    raise exception 'expires_at of a reservation never changes: make a new version' using errcode = 'check_violation';
  end if;
  if old.state <> 'held' and new.state <> old.state then
    raise exception 'reservation % version % is % for good', old.reservation_id, old.version, old.state
      using errcode = 'check_violation';
  end if;
  return new;
end
$$;
create trigger keep_what_is_agreed before update on reservations.reservation
  for each row execute function reservations.keep_what_is_agreed();

create function reservations.event_id(reservation_id text, version integer) returns text
language sql immutable strict as $$
  select 'reservation.expired ' || jsonb_build_array(reservation_id, version)::text
$$;

-- The same bytes in every session: a moment as text would depend on the session's time zone.
create function reservations.body(reservation_id text, version integer, expires_at timestamptz) returns text
language sql stable strict as $$
  select jsonb_build_object('reservation', reservation_id, 'version', version, 'expires_at',
                            to_char(expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text
$$;

-- As the source's file says; what scanned before there was a source divides reservations in the same way.
create function reservations.shard_count() returns integer language sql immutable as $$ select 4 $$;

-- The reservation's clock is now, which its caller gives: what happens to a delivery afterwards, and when, is not its business.

-- False: its time was over, it was settled before, or there is no such version.
create function reservations.confirm(reservation_id text, version integer, now timestamptz default clock_timestamp())
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update reservations.reservation r
  set state = 'confirmed', settled_at = clock_timestamp()
  where r.reservation_id = confirm.reservation_id and r.version = confirm.version
    and r.state = 'held' and r.expires_at > confirm.now;
  return found;
end
$$;

-- Held, and over: a page of them becomes expired, and what is returned is to be admitted in the same commit.
create function reservations.expire(
  page integer, refused text[], shards integer[], shard_count integer, now timestamptz default clock_timestamp()
) returns table (event_id text, event_type text, payload text, due_at timestamptz)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update reservations.reservation r
  set state = 'expired', settled_at = clock_timestamp()
  where r.state = 'held'
    and (r.reservation_id, r.version) in (
      select d.reservation_id, d.version from reservations.reservation d
      where d.state = 'held'
        and d.expires_at <= expire.now
        and outrider.shard_of(d.reservation_id, expire.shard_count) = any (expire.shards)
        and reservations.event_id(d.reservation_id, d.version) <> all (expire.refused)
      order by d.expires_at
      limit expire.page
      for update skip locked)
  returning reservations.event_id(r.reservation_id, r.version), 'reservation.expired',
            reservations.body(r.reservation_id, r.version, r.expires_at), r.expires_at
$$;
revoke all on function reservations.confirm, reservations.expire from public;

-- What a cron job called before there was a source: the same transition and the same admission, for the shards that the
-- source does not have yet. Returns how many.
create function reservations.scan(page integer, now timestamptz default clock_timestamp()) returns bigint
language sql set search_path = pg_catalog, pg_temp as $$
  select count(*)
  from reservations.expire(
         scan.page, '{}',
         array(select generate_series(0, reservations.shard_count() - 1) except select unnest(outrider.live_shards('reservations'))),
         reservations.shard_count(),
         scan.now) e
  cross join lateral outrider.admit(e.event_id, e.event_type, convert_to(e.payload, 'UTF8'))
$$;
