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

grant select, insert, update on outrider.replay, outrider.replay_cursor, outrider.replay_item to outrider_operator;
grant select, insert on outrider.replay_wanted to outrider_operator;
