-- What an act was asked to do, and the state it found and left, so that it can be understood and undone later.
alter table outrider.run
  add column parameters jsonb not null default '{}',
  add column before jsonb,
  add column after jsonb;

-- Newest first, all runs or those of people.
create index run_by_start on outrider.run (started_at, run_id);
create index run_by_act on outrider.run (started_at, run_id) where woken_by = 'operator';
