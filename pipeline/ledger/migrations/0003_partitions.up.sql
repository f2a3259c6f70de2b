-- Daily partitions of dispatch_outbox and delivery_attempt, made ahead and dropped whole.
-- Days are UTC, so that bounds do not depend on the session.

create table outrider.dispatch_outbox_rest partition of outrider.dispatch_outbox default;
create table outrider.delivery_attempt_rest partition of outrider.delivery_attempt default;

-- Makes the partitions from today on. Rows that fell into the default partition, because nobody called this
-- in time, stay there: moving them would publish them a second time. Their days get no partition of their own.
create function outrider.ensure_partitions(days_ahead integer) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  parent text;
  clock_column text;
  day date;
  child text;
  occupied boolean;
begin
  perform set_config('lock_timeout', '1s', true);
  for parent, clock_column in values ('dispatch_outbox', 'created_at'), ('delivery_attempt', 'recorded_at') loop
    for day in select current_date + n from generate_series(0, least(days_ahead, 366)) as n loop
      child := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
      continue when to_regclass(format('outrider.%I', child)) is not null;
      execute format('select exists (select from outrider.%I where %I >= $1 and %I < $2)',
                     parent || '_rest', clock_column, clock_column)
        into occupied using day::timestamptz, (day + 1)::timestamptz;
      continue when occupied;
      begin
        execute format('create table outrider.%I partition of outrider.%I for values from (%L) to (%L)',
                       child, parent, day::timestamptz, (day + 1)::timestamptz);
        return next child;
      exception when lock_not_available or duplicate_table or check_violation then
        null;  -- a long transaction, or another caller: the next call tries again
      end;
    end loop;
  end loop;
end
$$;

-- Drops partitions whose last day ended longer ago than asked, unless they hold a row of a delivery that is
-- not terminal. Returns the names of those dropped.
create function outrider.drop_expired_partitions(outbox_days integer, attempt_days integer) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  parent text;
  keep_days integer;
  child text;
  holds_evidence boolean;
begin
  if outbox_days < 1 or attempt_days < 1 then
    raise exception 'retention is at least one day' using errcode = '22023';
  end if;
  perform set_config('lock_timeout', '1s', true);
  for parent, keep_days in values ('dispatch_outbox', outbox_days), ('delivery_attempt', attempt_days) loop
    for child in
      select c.relname
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
      where i.inhparent = format('outrider.%I', parent)::regclass
        and c.relname ~ '_[0-9]{8}$'
        and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= current_date - keep_days
      order by c.relname
    loop
      execute format(
        'select exists (select from outrider.delivery d
                        where d.settled_at is null
                          and exists (select from outrider.%I p where p.delivery_id = d.delivery_id))', child)
        into holds_evidence;
      continue when holds_evidence;
      begin
        execute format('drop table outrider.%I', child);
        return next child;
      exception when lock_not_available then
        null;
      end;
    end loop;
  end loop;
end
$$;

revoke all on function outrider.ensure_partitions, outrider.drop_expired_partitions from public;
grant execute on function outrider.ensure_partitions, outrider.drop_expired_partitions
  to outrider_worker, outrider_operator;

select outrider.ensure_partitions(14);
