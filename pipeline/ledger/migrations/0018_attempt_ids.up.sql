-- A restore of the database puts the numbers of attempts back below those that lie in the attempts topic. One that is then
-- given out a second time would be taken for published where the connector has to catch up. Of our sequences only this one's
-- numbers are in a topic; the audit has none.

-- Where the sequence is behind an attempt of the topic, it goes on behind it, in the caller's transaction, and the run says
-- so in what it left. Under a rebuild that is at work.
create function outrider.raise_attempt_ids(run uuid, proven bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  given bigint;
begin
  if not exists (select from outrider.replay r
                 where r.run_id = run and r.source = 'rebuild' and r.phase = 'evidence' and r.wish = 'run') then
    raise exception 'run % rebuilds nothing now', run using errcode = '22023';
  end if;
  -- From a topic that others may write to: whatever it says, nearly all of the numbers must be left.
  if proven is null or proven not between 0 and 999999999999999999 then
    raise exception 'no attempt has the number %', proven using errcode = '22023';
  end if;
  if proven <= outrider.given_attempt_ids() then
    return;
  end if;
  -- Nobody draws a number from here on: who inserts an attempt locks the table for writing first.
  lock table only outrider.delivery_attempt in share row exclusive mode;
  given := outrider.given_attempt_ids();
  if proven > given then
    -- Unlike setval, it is undone where the transaction is.
    execute format('alter sequence outrider.delivery_attempt_attempt_id_seq restart with %s', proven + 1);
    update outrider.run r
    set after = jsonb_build_array(jsonb_build_object(
      'sequence', 'outrider.delivery_attempt.attempt_id',
      'was', coalesce(r.after #> '{0,was}', to_jsonb(given)),
      'raised_to', proven))
    where r.run_id = run;
  end if;
end
$$;

-- The last number that was given out; 0 where none was.
create function outrider.given_attempt_ids() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select case when s.is_called then s.last_value else s.last_value - 1 end
  from outrider.delivery_attempt_attempt_id_seq s
$$;

revoke all on function outrider.raise_attempt_ids, outrider.given_attempt_ids from public;
grant execute on function outrider.raise_attempt_ids, outrider.given_attempt_ids to outrider_operator;
