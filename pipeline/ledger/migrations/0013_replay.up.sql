-- Replays: what was selected, how far it has gone, and what became of each delivery. All of it belongs to a run.

-- The run itself has operator, reason, plan and counts. Pause and cancel are wishes, which whoever drives the run reads
-- with each of its transactions.
create table outrider.replay (
  run_id          uuid primary key references outrider.run,
  source          text not null check (source in ('topic', 'ledger', 'dead', 'rebuild')),
  phase           text not null default 'select' check (phase in ('evidence', 'select', 'dispatch', 'over')),
  wish            text not null default 'run' check (wish in ('run', 'pause', 'cancel')),
  -- Host and process that drive it, and when they were last heard of. The lock that lets nobody else is their session's.
  driver          text,
  driver_seen_at  timestamptz,
  -- Of a source in the ledger: the delivery that was taken last.
  after_destination text not null default '',
  after_time      timestamptz not null default '0001-01-01 00:00:00+00',
  after_id        text not null default ''
);

-- How far each partition was read. Moves in the transaction that takes what was read.
create table outrider.replay_cursor (
  run_id       uuid not null references outrider.replay,
  topic        text not null,
  partition    integer not null,
  begin_offset bigint not null,
  next_offset  bigint not null,
  end_offset   bigint not null,
  messages     bigint not null default 0,
  -- Messages that are no dispatch of a delivery here; they are in quarantine.
  refused      bigint not null default 0,
  -- Offsets that retention took before they were read.
  removed      bigint not null default 0,
  primary key (run_id, topic, partition),
  check (next_offset between begin_offset and end_offset)
);

-- The list of ids that narrows a run, where it was given one.
create table outrider.replay_wanted (
  run_id      uuid not null,
  delivery_id text not null,
  primary key (run_id, delivery_id)
);

-- Without a foreign key, which would be looked up for each of a million rows.
-- One row for each delivery that a run has come upon, in the order of its turns. verdict NULL: its turn is to come;
-- replayed or rebuilt: done, as dispatch replayed_seq; all else: skipped, and why.
create table outrider.replay_item (
  run_id         uuid not null,
  item_no        bigint not null generated always as identity,
  delivery_id    text not null,
  destination_id text not null,
  -- The delivery's dispatch when it was selected. Who has another one since is left alone.
  dispatch_seq   integer not null,
  verdict        text,
  replayed_seq   integer,
  decided_at     timestamptz,
  primary key (run_id, delivery_id)
);
create index replay_item_by_turn on outrider.replay_item (run_id, destination_id, item_no) where verdict is null;

-- What a replay would do with a delivery: 'replay', or the reason to leave it. missing: the receiver was never asked, or
-- what was handed to Kafka was never claimed. failed: given up, or waiting after an attempt. What an operator has
-- cancelled stays so unless its outcome is asked for.
create function outrider.replay_verdict(
  state text, attempt integer, last_outcome text, mode text, takes_cancelled boolean)
returns text language sql immutable parallel safe
return case
  when state = 'leased' then 'in_flight'
  when state = 'dead' and last_outcome = 'cancelled' and not takes_cancelled then 'cancelled'
  when mode = 'all' then 'replay'
  when mode = 'missing' and (state = 'enqueued' or (state = 'pending' and attempt = 0)) then 'replay'
  when mode = 'failed' and (state = 'dead' or (state = 'pending' and attempt > 0)) then 'replay'
  when state = 'pending' and attempt > 0 then 'retrying'
  else state end;
revoke all on function outrider.replay_verdict from public;
grant execute on function outrider.replay_verdict to outrider_operator;

-- What the attempts topic says of deliveries that the ledger lacks, or knows less of: the highest numbers, and how the
-- last attempt that counted ended; a success outweighs what came after it.
create table outrider.replay_evidence (
  run_id       uuid not null,
  delivery_id  text not null,
  attempt      integer not null,
  dispatch_seq integer not null,
  result       text,
  outcome      text,
  status       integer,
  recorded_at  timestamptz not null,
  primary key (run_id, delivery_id)
);

-- What messages of the dispatch topic are to the ledger. rebuild: their delivery is missing. known; behind: the ledger's
-- dispatch number is lower. All else cannot be rebuilt: incomplete (written without what makes an event), foreign (ids that
-- are not those of its content), no_destination, other_event (the ledger has that event with another content).
create function outrider.rebuild_findings(messages jsonb, payloads bytea[])
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
           when (e.payload, e.event_type, e.content_type) <> (payloads[m.place], m.event_type, m.content_type)
             then 'other_event'
           else 'rebuild' end,
         d.state, d.attempt
  from jsonb_to_recordset(messages) as m (
    place integer, delivery_id text, destination_id text, event_id text, event_type text, content_type text, headers jsonb,
    message_id text, dispatch_seq integer, logged_at timestamptz)
  left join outrider.delivery d on d.delivery_id = m.delivery_id
  left join outrider.event e on e.event_id = m.event_id
$$;

-- What is done about a finding, with the evidence there is. rebuild_…: as what the row comes back. advance: the row learns
-- what the topics know beyond it.
create function outrider.rebuild_verdict(
  finding text, state text, attempt integer, evidence_attempt integer, evidence_result text)
returns text language sql immutable parallel safe
return case
  when finding = 'rebuild' then
    case evidence_result when 'succeeded' then 'rebuild_succeeded' when 'dead' then 'rebuild_dead' else 'rebuild_due' end
  when finding not in ('known', 'behind') then finding
  when state = 'leased' then
    case when evidence_attempt >= attempt and evidence_result in ('succeeded', 'dead') then 'advance'
         when finding = 'behind' then 'in_flight' else 'known' end
  when finding = 'behind' or (evidence_attempt > attempt and state <> 'succeeded') then 'advance'
  else 'known' end;

-- Restores a batch. Under a run of its own kind, which is at work, since it writes what else only admission and workers do.
-- What is due waits until the whole topic is read, so that its next dispatch gets a number that no message has.
create function outrider.rebuild_deliveries(run uuid, messages jsonb, payloads bytea[])
returns table (verdict text, deliveries bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if not exists (select from outrider.replay r
                 where r.run_id = run and r.source = 'rebuild' and r.phase = 'select' and r.wish = 'run') then
    raise exception 'run % rebuilds nothing now', run using errcode = '22023';
  end if;
  return query
  with found as materialized (
    select f.*, v.attempt as evidence_attempt, v.result, v.outcome, v.status, v.recorded_at,
           greatest(f.dispatch_seq, v.dispatch_seq) as sequence,
           outrider.rebuild_verdict(f.finding, f.state, f.attempt, v.attempt, v.result) as verdict
    from outrider.rebuild_findings(messages, payloads) f
    left join outrider.replay_evidence v on v.run_id = run and v.delivery_id = f.delivery_id
  ), event as (
    insert into outrider.event (event_id, event_type, content_type, payload, headers, by_subscription, admitted_at)
    select distinct on (f.event_id) f.event_id, f.event_type, f.content_type, f.payload, f.headers, false, f.logged_at
    from found f
    where f.finding = 'rebuild'
    order by f.event_id, f.place
    on conflict do nothing
  ), rebuilt as (
    insert into outrider.delivery as n (
      delivery_id, event_id, destination_id, state, attempt, dispatch_seq, next_attempt_at, settled_at, waiting_reason,
      last_outcome, last_status, created_at)
    select f.delivery_id, f.event_id, f.destination_id,
           case f.verdict when 'rebuild_succeeded' then 'succeeded' when 'rebuild_dead' then 'dead' else 'pending' end,
           coalesce(f.evidence_attempt, 0), f.sequence,
           case when f.verdict = 'rebuild_due' then statement_timestamp() + interval '1 hour' end,
           case when f.verdict <> 'rebuild_due' then f.recorded_at end,
           case when f.verdict = 'rebuild_due' then 'rebuilt' end,
           f.outcome, f.status, f.logged_at
    from found f
    where f.finding = 'rebuild'
    on conflict do nothing
    returning n.delivery_id
  ), advanced as (
    update outrider.delivery d
    set dispatch_seq = greatest(d.dispatch_seq, f.sequence),
        attempt = greatest(d.attempt, f.evidence_attempt),
        state = coalesce(n.state, d.state),
        next_attempt_at = case when n.state is null then d.next_attempt_at end,
        lost_after = case when n.state is null then d.lost_after end,
        leased_at = case when n.state is null then d.leased_at end,
        lease_until = case when n.state is null then d.lease_until end,
        lease_owner = case when n.state is null then d.lease_owner end,
        waiting_reason = case when n.state is null then d.waiting_reason end,
        settled_at = case when n.state is null then d.settled_at else f.recorded_at end,
        last_outcome = case when n.state is null then d.last_outcome else f.outcome end,
        last_status = case when n.state is null then d.last_status else f.status end
    from found f
    cross join lateral (
      select case when f.result in ('succeeded', 'dead') and f.state <> 'succeeded'
                   and (f.evidence_attempt > f.attempt or f.state = 'leased') then f.result end as state
    ) n
    where f.verdict = 'advance'
      and d.delivery_id = f.delivery_id
      and d.state || '' = f.state
      and d.attempt = f.attempt
    returning d.delivery_id
  ), decided as (
    insert into outrider.replay_item as i (
      run_id, delivery_id, destination_id, dispatch_seq, verdict, replayed_seq, decided_at)
    select run, f.delivery_id, f.destination_id, f.dispatch_seq,
           case when b.delivery_id is not null then 'rebuilt' when a.delivery_id is not null then 'advanced'
                when f.finding = 'rebuild' or f.verdict = 'advance' then 'gone_on' else f.verdict end,
           f.sequence, statement_timestamp()
    from found f
    left join rebuilt b on b.delivery_id = f.delivery_id
    left join advanced a on a.delivery_id = f.delivery_id
    where f.verdict <> 'known'
    order by f.place
    on conflict (run_id, delivery_id) do nothing
    returning i.verdict
  )
  select d.verdict, count(*) from decided d group by d.verdict;
end
$$;
revoke all on function outrider.rebuild_findings, outrider.rebuild_verdict, outrider.rebuild_deliveries from public;
grant execute on function outrider.rebuild_findings, outrider.rebuild_verdict, outrider.rebuild_deliveries
  to outrider_operator;

grant select, insert, update on outrider.replay, outrider.replay_cursor, outrider.replay_item,
                                outrider.replay_evidence
  to outrider_operator;
grant select, insert on outrider.replay_wanted to outrider_operator;
-- A report by id is not kept for ever.
grant delete on outrider.replay_item, outrider.replay_wanted, outrider.replay_evidence to outrider_operator;
