-- Sources: reviewed queries that find business rows that are due, and admit them. What a source is lies in a file; what
-- operators switch, and what reconcilers must agree on, lies here. See docs/sources.md.

-- The reconciler does what a worker does to the ledger, and admits, which a worker must not: it talks to receivers.
do $$
begin
  create role outrider_reconciler nologin;
exception when duplicate_object or unique_violation then
  null;
end
$$;
do $$
begin
  if not pg_has_role('outrider_reconciler', 'outrider_worker', 'member') then
    grant outrider_worker to outrider_reconciler;
  end if;
end
$$;

create table outrider.source (
  source_id   text primary key check (source_id ~ '^[a-z][a-z0-9_-]{0,62}$'),
  description text not null,
  -- As the file says that was read last.
  shard_count integer not null check (shard_count between 1 and 1024),
  can_shadow  boolean not null,
  read_at     timestamptz not null default clock_timestamp(),
  enabled     boolean not null default true,
  -- When its clocks made a pass begin last, for all reconcilers together. A source that is new owes no tick of its cron.
  interval_at timestamptz,
  cron_at     timestamptz not null default clock_timestamp()
);

-- A shard without a row is off. A mode counts only while the source has as many shards as when it was set, because with
-- another number the same shard is other rows.
create table outrider.source_shard (
  source_id   text not null references outrider.source,
  shard       integer not null check (shard >= 0),
  shard_count integer not null check (shard_count between 1 and 1024),
  mode        text not null check (mode in ('off', 'shadow', 'live')),
  changed_at  timestamptz not null default clock_timestamp(),
  primary key (source_id, shard)
);

-- Wake-ups that came from outside and wait for a pass, or for the end of one: a pass that is killed leaves its own here,
-- and another takes it when the time is over. At most one waits for each source; whoever calls meanwhile shares it.
create table outrider.source_wakeup (
  run_id       uuid primary key references outrider.run,
  source_id    text not null references outrider.source,
  requested_at timestamptz not null default clock_timestamp(),
  taken_until  timestamptz
);
create unique index source_wakeup_waiting on outrider.source_wakeup (source_id) where taken_until is null;

-- Rows that admission refused: they stay due, later ones pass them, and they are tried again.
create table outrider.source_refusal (
  source_id   text not null references outrider.source,
  event_id    text not null,
  reason      text not null,
  times       integer not null default 1,
  first_at    timestamptz not null default clock_timestamp(),
  last_at     timestamptz not null default clock_timestamp(),
  retry_at    timestamptz not null,
  primary key (source_id, event_id)
);

-- What was seen of shards in shadow mode: by the claim, by the direct query, and by whoever admits them now.
create table outrider.source_shadow (
  source_id       text not null references outrider.source,
  event_id        text not null,
  first_at        timestamptz not null default clock_timestamp(),
  due_at          timestamptz,
  -- Of the claim.
  event_type      text,
  payload_sha256  bytea,
  candidate_at    timestamptz,
  candidate_looks integer not null default 0,
  -- Of the direct query.
  direct_at       timestamptz,
  direct_looks    integer not null default 0,
  -- Of the path that is live: when it admitted, and whether type and bytes are those of the claim.
  live_at         timestamptz,
  is_same         boolean,
  -- Whether a look had seen everything that was due between due_at and live_at.
  was_looked_for  boolean,
  primary key (source_id, event_id)
);
create index source_shadow_by_time on outrider.source_shadow (source_id, first_at);
create index source_shadow_waiting on outrider.source_shadow (source_id, event_id) where live_at is null;

create index run_of_source on outrider.run ((parameters ->> 'source'), started_at)
  where kind in ('source.pass', 'source.shadow');

alter table outrider.api_key drop constraint api_key_scopes_check;
alter table outrider.api_key add constraint api_key_scopes_check
  check (cardinality(scopes) > 0 and scopes <@ array['admit', 'read', 'operate', 'wake']);

-- Which of so many shards a key falls into: the first 32 bits of its SHA-256, modulo. Any language can compute it.
create function outrider.shard_of(key text, shard_count integer) returns integer
language sql immutable strict parallel safe
return (('x' || pg_catalog.left(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(key, 'UTF8')), 'hex'), 8))::bit(32)::bigint
        % shard_count)::integer;

-- Shards that the reconciler admits: the path that a source replaces leaves these alone.
create function outrider.live_shards(source_id text) returns integer[]
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(h.shard order by h.shard), '{}')
  from outrider.source s
  join outrider.source_shard h on h.source_id = s.source_id and h.shard_count = s.shard_count
  where s.source_id = live_shards.source_id and s.enabled and h.mode = 'live'
$$;

-- Asks for a pass, durably once the caller's transaction commits. Returns the pass's run, which may be one that others
-- wait for already; NULL where there is no such source.
create function outrider.wake_source(source_id text, woken_by text, operator text) returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  run uuid;
begin
  if not exists (select from outrider.source s where s.source_id = wake_source.source_id) then
    return null;
  end if;
  loop
    select w.run_id into run from outrider.source_wakeup w
    where w.source_id = wake_source.source_id and w.taken_until is null;
    exit when found;
    begin
      insert into outrider.run (kind, woken_by, operator, parameters)
      values ('source.pass', wake_source.woken_by, coalesce(wake_source.operator, session_user),
              jsonb_build_object('source', wake_source.source_id))
      returning run_id into run;
      insert into outrider.source_wakeup (run_id, source_id) values (run, wake_source.source_id);
      exit;
    exception when unique_violation then
      null;  -- somebody else's is there in this moment
    end;
  end loop;
  perform pg_notify('outrider_source_woken', wake_source.source_id);
  return run;
end
$$;

-- Passes that found nothing, and were woken by nothing but a clock, are evidence for so long.
create function outrider.forget_empty_passes(older_than interval) returns bigint
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with forgotten as (
    delete from outrider.run r
    where r.kind in ('source.pass', 'source.shadow')
      and r.started_at < clock_timestamp() - greatest(forget_empty_passes.older_than, interval '1 hour')
      and r.woken_by in ('interval', 'cron')
      and r.finished_at is not null
      and r.error is null
      and coalesce((r.counts ->> 'examined')::bigint, 0) = 0
      and coalesce((r.counts ->> 'refused')::bigint, 0) = 0
    returning 1
  )
  select count(*) from forgotten
$$;

revoke all on function outrider.shard_of, outrider.live_shards, outrider.wake_source, outrider.forget_empty_passes
  from public;
grant execute on function outrider.shard_of, outrider.live_shards
  to outrider_application, outrider_reconciler, outrider_operator;
grant execute on function outrider.wake_source to outrider_api, outrider_reconciler, outrider_operator;
grant execute on function outrider.forget_empty_passes to outrider_reconciler;

grant usage on schema outrider to outrider_reconciler;
grant execute on function outrider.admit_many to outrider_reconciler;
grant select, insert on outrider.source to outrider_reconciler, outrider_operator;
grant update (description, shard_count, can_shadow, read_at) on outrider.source to outrider_reconciler, outrider_operator;
grant update (interval_at, cron_at) on outrider.source to outrider_reconciler;
grant update (enabled) on outrider.source to outrider_operator;
grant select on outrider.source_shard, outrider.source_wakeup, outrider.source_refusal, outrider.source_shadow
  to outrider_reconciler, outrider_operator;
grant insert, update on outrider.source_shard to outrider_operator;
grant update (taken_until), delete on outrider.source_wakeup to outrider_reconciler;
grant insert, update, delete on outrider.source_refusal, outrider.source_shadow to outrider_reconciler;
grant update (parameters, before, after) on outrider.run to outrider_reconciler;
