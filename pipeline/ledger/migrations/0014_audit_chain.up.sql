-- The audit as an append-only store: one chain of hashes for each partition of a topic, so that a row that was changed or
-- removed is found (outrider audit verify). Written only through outrider_audit.append, which reads the chain's end, links
-- the new rows to it and moves it on; its caller may neither read nor write a table.

alter table outrider_audit.record rename to record_unchained;
alter index outrider_audit.record_pkey rename to record_unchained_pkey;
drop index outrider_audit.record_by_delivery;

create table outrider_audit.record (
  topic          text not null,
  partition      integer not null,
  log_offset     bigint not null,
  -- By the topic's clock. Part of the key, since days are partitions; a message that is read again has the same.
  logged_at      timestamptz not null,
  -- Place in the chain of this topic and partition: 1, 2, 3 …, in the order of recording.
  chain_seq      bigint not null,
  recorded_at    timestamptz not null,
  delivery_id    text,
  destination_id text,
  event_id       text,
  dispatch_seq   integer,
  -- Of a dispatch: why it was handed to Kafka.
  reason         text,
  -- The following are of an attempt.
  attempt        integer,
  result         text,
  outcome        text,
  status         integer,
  ambiguous      boolean,
  worker_id      text,
  key_ids        text[],
  started_at     timestamptz,
  duration_us    bigint,
  body_sha256    bytea,
  -- Why the message could not be understood; NULL for those that were.
  defect         text,
  -- SHA-256 of the hash before it (32 zero bytes before the first) and outrider_audit.content of this row.
  hash           bytea not null,
  primary key (topic, partition, log_offset, logged_at)
) partition by range (logged_at);
create index record_by_chain on outrider_audit.record (topic, partition, chain_seq);
create index record_by_delivery on outrider_audit.record (delivery_id);
-- Rows whose time is absurd, or whose day had no partition. They are verified like others, and never expire.
create table outrider_audit.record_rest partition of outrider_audit.record default;

-- Where each chain ends.
create table outrider_audit.tip (
  topic       text not null,
  partition   integer not null,
  chain_seq   bigint not null default 0,
  hash        bytea not null default decode(repeat('00', 32), 'hex'),
  -- The highest that was recorded.
  log_offset  bigint not null default -1,
  anchor_seq  bigint not null default 0,
  anchored_at timestamptz not null default clock_timestamp(),
  primary key (topic, partition)
);

-- The hash at a place of a chain, noted apart from it every so often. Copies kept elsewhere show what no table here can.
create table outrider_audit.anchor (
  topic       text not null,
  partition   integer not null,
  chain_seq   bigint not null,
  hash        bytea not null,
  anchored_at timestamptz not null,
  primary key (topic, partition, chain_seq)
);

-- What retention took out of a chain: a link of that chain itself, which says what stood at both edges of the gap.
create table outrider_audit.tombstone (
  topic           text not null,
  partition       integer not null,
  chain_seq       bigint not null,
  from_seq        bigint not null,
  to_seq          bigint not null,
  first_offset    bigint not null,
  last_offset     bigint not null,
  first_logged_at timestamptz not null,
  last_logged_at  timestamptz not null,
  before_hash     bytea not null,
  after_hash      bytea not null,
  removed_at      timestamptz not null,
  removed_by      text not null,
  keep_days       integer not null,
  hash            bytea not null,
  primary key (topic, partition, chain_seq)
);

create function outrider_audit.refuse() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  raise exception 'the audit only grows: % of % is refused', lower(tg_op), tg_table_name using errcode = '42501';
end
$$;
create trigger append_only before update or delete on outrider_audit.record
  for each row execute function outrider_audit.refuse();
create trigger append_only before update or delete or truncate on outrider_audit.anchor
  for each statement execute function outrider_audit.refuse();
create trigger append_only before update or delete or truncate on outrider_audit.tombstone
  for each statement execute function outrider_audit.refuse();

-- What is hashed: a JSON array as PostgreSQL prints it, so that any language can say it again. Times are microseconds
-- since 1970. pipeline/audit/chain.py computes the same.
create function outrider_audit.microseconds(moment timestamptz) returns bigint language sql immutable parallel safe
return (extract(epoch from moment) * 1000000)::bigint;

create function outrider_audit.content(r outrider_audit.record) returns text language sql stable parallel safe
return json_build_array('record', r.topic, r.partition, r.chain_seq, r.log_offset, outrider_audit.microseconds(r.logged_at),
  outrider_audit.microseconds(r.recorded_at), r.delivery_id, r.destination_id, r.event_id, r.dispatch_seq, r.reason,
  r.attempt, r.result, r.outcome, r.status, r.ambiguous, r.worker_id, to_jsonb(r.key_ids),
  outrider_audit.microseconds(r.started_at), r.duration_us, encode(r.body_sha256, 'hex'), r.defect)::text;

create function outrider_audit.content(t outrider_audit.tombstone) returns text language sql stable parallel safe
return json_build_array('tombstone', t.topic, t.partition, t.chain_seq, t.from_seq, t.to_seq, t.first_offset, t.last_offset,
  outrider_audit.microseconds(t.first_logged_at), outrider_audit.microseconds(t.last_logged_at),
  encode(t.before_hash, 'hex'), encode(t.after_hash, 'hex'), outrider_audit.microseconds(t.removed_at), t.removed_by,
  t.keep_days)::text;

create function outrider_audit.link(before bytea, content text) returns bytea language sql immutable parallel safe
return sha256(before || convert_to(content, 'UTF8'));

-- Moves a chain's end on. An anchor is noted after 1000 links, and with the first batch an hour after the last one.
create function outrider_audit.move_tip(moved outrider_audit.tip, moment timestamptz) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  is_anchor constant boolean := moved.chain_seq - moved.anchor_seq >= 1000
    or (moved.chain_seq > moved.anchor_seq and moment - moved.anchored_at >= interval '1 hour');
begin
  if is_anchor then
    insert into outrider_audit.anchor (topic, partition, chain_seq, hash, anchored_at)
    values (moved.topic, moved.partition, moved.chain_seq, moved.hash, moment);
  end if;
  update outrider_audit.tip t
  set chain_seq = moved.chain_seq,
      hash = moved.hash,
      log_offset = moved.log_offset,
      anchor_seq = case when is_anchor then moved.chain_seq else t.anchor_seq end,
      anchored_at = case when is_anchor then moment else t.anchored_at end
  where t.topic = moved.topic and t.partition = moved.partition;
  return is_anchor;
end
$$;

-- Records messages, given as an array of objects with the columns of outrider_audit.record; place in the chain, hash and
-- time of recording are decided here. A message that was recorded before stays as it is. One row for each chain: how
-- many were new, how many not, where the chain ends now, and whether that is an anchor.
create function outrider_audit.append(entries jsonb)
returns table (topic text, partition integer, appended integer, repeated integer, chain_seq bigint, hash bytea,
               is_anchor boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  moment constant timestamptz := clock_timestamp();
  tip outrider_audit.tip;
  entry outrider_audit.record;
begin
  -- In this order every caller locks the chains alike.
  for entry in
    select * from jsonb_populate_recordset(null::outrider_audit.record, entries) e
    order by e.topic, e.partition, e.log_offset
  loop
    if (tip.topic, tip.partition) is distinct from (entry.topic, entry.partition) then
      if tip.topic is not null then
        is_anchor := outrider_audit.move_tip(tip, moment);
        topic := tip.topic; partition := tip.partition; chain_seq := tip.chain_seq; hash := tip.hash;
        return next;
      end if;
      insert into outrider_audit.tip (topic, partition) values (entry.topic, entry.partition) on conflict do nothing;
      select * into strict tip from outrider_audit.tip t
      where t.topic = entry.topic and t.partition = entry.partition for update;
      appended := 0;
      repeated := 0;
    end if;
    if entry.log_offset <= tip.log_offset
       and exists (select from outrider_audit.record r
                   where r.topic = entry.topic and r.partition = entry.partition
                     and r.log_offset = entry.log_offset and r.logged_at = entry.logged_at) then
      repeated := repeated + 1;
      continue;
    end if;
    tip.chain_seq := tip.chain_seq + 1;
    entry.chain_seq := tip.chain_seq;
    entry.recorded_at := moment;
    entry.hash := outrider_audit.link(tip.hash, outrider_audit.content(entry));
    insert into outrider_audit.record select entry.*;
    tip.hash := entry.hash;
    tip.log_offset := greatest(tip.log_offset, entry.log_offset);
    appended := appended + 1;
  end loop;
  if tip.topic is not null then
    is_anchor := outrider_audit.move_tip(tip, moment);
    topic := tip.topic; partition := tip.partition; chain_seq := tip.chain_seq; hash := tip.hash;
    return next;
  end if;
end
$$;

-- Makes the daily partitions around today, and gives up at the first lock that it does not get at once: the next call
-- goes on. Days are UTC. A day of which rows lie in record_rest already gets none.
create function outrider_audit.ensure_partitions(days_back integer, days_ahead integer) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  day date;
  child text;
begin
  perform set_config('lock_timeout', '100ms', true);
  for day in select current_date + n from generate_series(-least(days_back, 400), least(days_ahead, 366)) as n loop
    child := 'record_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass(format('outrider_audit.%I', child)) is not null;
    continue when exists (select from outrider_audit.record_rest r
                          where r.logged_at >= day::timestamptz and r.logged_at < (day + 1)::timestamptz);
    begin
      execute format('create table outrider_audit.%I (like outrider_audit.record including constraints)', child);
      execute format('alter table outrider_audit.record attach partition outrider_audit.%I for values from (%L) to (%L)',
                     child, day::timestamptz, (day + 1)::timestamptz);
      return next child;
    exception
      when duplicate_table or check_violation then
        null;  -- another caller was first, or rows have come meanwhile
      when lock_not_available then
        return;
    end;
  end loop;
end
$$;

-- Drops the oldest day that ended longer ago than asked, with its tombstones in one transaction. Returns its table's name;
-- nothing where there is none, or where a lock is not got at once. No less than 31 days are kept, so that a slip of a
-- setting takes no evidence of deliveries that are still under way.
create function outrider_audit.expire(keep_days integer) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  moment constant timestamptz := clock_timestamp();
  child text;
  tip outrider_audit.tip;
  grave outrider_audit.tombstone;
begin
  if expire.keep_days is null or expire.keep_days < 31 then
    raise exception 'the audit is kept for at least 31 days' using errcode = '22023';
  end if;
  perform set_config('lock_timeout', '100ms', true);
  for child in
    select c.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'outrider_audit.record'::regclass
      and c.relname ~ '^record_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= current_date - expire.keep_days
    order by c.relname
    limit 1
  loop
    begin
      execute format('lock table outrider_audit.%I in access exclusive mode', child);
      for grave in execute format(
        'select topic, partition, null::bigint, min(chain_seq), max(chain_seq), min(log_offset), max(log_offset),
                min(logged_at), max(logged_at), null::bytea, null::bytea, null::timestamptz, null::text, null::integer,
                null::bytea
         from (select r.*, chain_seq - row_number() over (partition by topic, partition order by chain_seq) as island
               from outrider_audit.%I r) r
         group by topic, partition, island
         order by topic, partition, 4', child)
      loop
        select * into strict tip from outrider_audit.tip t
        where t.topic = grave.topic and t.partition = grave.partition for update;
        -- What stands before the gap: a row, an earlier gap's end, a tombstone, or nothing.
        grave.before_hash := coalesce(
          (select r.hash from outrider_audit.record r
           where r.topic = grave.topic and r.partition = grave.partition and r.chain_seq = grave.from_seq - 1),
          (select s.after_hash from outrider_audit.tombstone s
           where s.topic = grave.topic and s.partition = grave.partition and s.to_seq = grave.from_seq - 1),
          (select s.hash from outrider_audit.tombstone s
           where s.topic = grave.topic and s.partition = grave.partition and s.chain_seq = grave.from_seq - 1),
          decode(repeat('00', 32), 'hex'));
        select r.hash into strict grave.after_hash from outrider_audit.record r
        where r.topic = grave.topic and r.partition = grave.partition and r.chain_seq = grave.to_seq;
        tip.chain_seq := tip.chain_seq + 1;
        grave.chain_seq := tip.chain_seq;
        grave.removed_at := moment;
        grave.removed_by := session_user;
        grave.keep_days := expire.keep_days;
        grave.hash := outrider_audit.link(tip.hash, outrider_audit.content(grave));
        tip.hash := grave.hash;
        insert into outrider_audit.tombstone select grave.*;
        perform outrider_audit.move_tip(tip, moment);
      end loop;
      execute format('drop table outrider_audit.%I', child);
      return next child;
    exception when lock_not_available then
      return;
    end;
  end loop;
end
$$;

-- What was recorded before becomes the beginning of the chains.
do $$
declare
  day date;
  page jsonb;
  place record;
begin
  for day in
    select distinct (logged_at at time zone 'UTC')::date from outrider_audit.record_unchained
    where logged_at between now() - interval '400 days' and now() + interval '2 days'
  loop
    execute format('create table outrider_audit.%I partition of outrider_audit.record for values from (%L) to (%L)',
                   'record_' || to_char(day, 'YYYYMMDD'), day::timestamp at time zone 'UTC',
                   (day + 1)::timestamp at time zone 'UTC');
  end loop;
  for place in
    select topic, partition, log_offset / 1000 as page from outrider_audit.record_unchained group by 1, 2, 3 order by 1, 2, 3
  loop
    select jsonb_agg(to_jsonb(r)) into page from outrider_audit.record_unchained r
    where r.topic = place.topic and r.partition = place.partition
      and r.log_offset between place.page * 1000 and place.page * 1000 + 999;
    perform outrider_audit.append(page);
  end loop;
end
$$;
drop table outrider_audit.record_unchained;

revoke all on all functions in schema outrider_audit from public;
grant execute on function outrider_audit.append, outrider_audit.ensure_partitions to outrider_auditor;
-- Not to workers, which talk to receivers, nor to the auditor, which writes what it would drop.
grant usage on schema outrider_audit to outrider_reconciler;
grant execute on function outrider_audit.expire to outrider_reconciler, outrider_operator;
grant select on outrider_audit.record, outrider_audit.tip, outrider_audit.anchor, outrider_audit.tombstone
  to outrider_operator;

-- Which transaction admitted an event, and where the write-ahead log stood: its commit lies at or behind that. Events
-- from before say neither.
alter table outrider.event
  add column admitted_in xid8,
  add column admitted_lsn pg_lsn;
alter table outrider.event
  alter column admitted_in set default pg_current_xact_id(),
  alter column admitted_lsn set default pg_current_wal_insert_lsn();
