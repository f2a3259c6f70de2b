-- What happens to an asset pends here, per publisher, until it is announced: transcoded, or rights that changed.
create schema media;

create table media.publisher (
  publisher_id   text primary key,
  destination_id text not null
);

create table media.happening (
  publisher_id text not null references media.publisher,
  asset        text not null check (octet_length(asset) between 1 and 200),
  kind         text not null check (kind in ('transcoded', 'rights_changed')),
  version      integer not null check (version > 0),
  -- NULL once it has been moved out. What is left of the row keeps the identity.
  document     text,
  ready_at     timestamptz not null default clock_timestamp(),
  announced_at timestamptz,
  primary key (publisher_id, asset, kind, version),
  check (document is not null or announced_at is not null)
);
create index happening_pending on media.happening (ready_at) where announced_at is null;

create table media.archive (
  event_id text primary key,
  document text not null,
  moved_at timestamptz not null default clock_timestamp()
);

create function media.event_id(publisher_id text, asset text, kind text, version integer) returns text
language sql immutable strict as $$ select 'media ' || jsonb_build_array(publisher_id, asset, kind, version)::text $$;

create function media.claim_pending(page integer, refused text[], shards integer[], shard_count integer)
returns table (event_id text, event_type text, payload text, destinations text[], due_at timestamptz)
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update media.happening h
  set announced_at = clock_timestamp()
  from media.publisher p
  where p.publisher_id = h.publisher_id
    and h.announced_at is null
    and (h.publisher_id, h.asset, h.kind, h.version) in (
      select d.publisher_id, d.asset, d.kind, d.version from media.happening d
      where d.announced_at is null
        and d.ready_at <= clock_timestamp()
        and outrider.shard_of(d.publisher_id, claim_pending.shard_count) = any (claim_pending.shards)
        and media.event_id(d.publisher_id, d.asset, d.kind, d.version) <> all (claim_pending.refused)
      order by d.ready_at
      limit claim_pending.page
      for update skip locked)
  returning media.event_id(h.publisher_id, h.asset, h.kind, h.version), 'media.' || h.kind, h.document,
            array[p.destination_id], h.ready_at
$$;
revoke all on function media.claim_pending from public;

-- Documents of what was announced earlier than that go to the archive, at most a page of them. Returns how many.
create function media.move_out(announced_before timestamptz, page integer default 1000) returns bigint
language sql set search_path = pg_catalog, pg_temp as $$
  with chosen as (
    select h.publisher_id, h.asset, h.kind, h.version, h.document
    from media.happening h
    where h.announced_at < move_out.announced_before and h.document is not null
    limit move_out.page
    for update skip locked
  ), kept as (
    insert into media.archive (event_id, document)
    select media.event_id(c.publisher_id, c.asset, c.kind, c.version), c.document from chosen c
    on conflict do nothing
  ), emptied as (
    update media.happening h set document = null
    from chosen c
    where (h.publisher_id, h.asset, h.kind, h.version) = (c.publisher_id, c.asset, c.kind, c.version)
    returning 1
  )
  select count(*) from emptied
$$;
