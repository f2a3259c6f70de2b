-- Daily partitions of dispatch_outbox and delivery_attempt, made ahead and dropped whole.
-- Days are UTC, so that bounds do not depend on the session.

create table outrider.dispatch_outbox_rest partition of outrider.dispatch_outbox default;
create table outrider.delivery_attempt_rest partition of outrider.delivery_attempt default;

-- Makes the partitions from today on, and gives up at the first lock that it does not get at once: the next call goes
-- on. A table is made apart and then attached, because that leaves admission alone: making it as a partition would
-- close the whole table to it while some reader is waited for. Rows that fell into the default partition, because nobody called this
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
  perform set_config('lock_timeout', '100ms', true);
  for parent, clock_column in values ('dispatch_outbox', 'created_at'), ('delivery_attempt', 'recorded_at') loop
    for day in select current_date + n from generate_series(0, least(days_ahead, 366)) as n loop
      child := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
      continue when to_regclass(format('outrider.%I', child)) is not null;
      execute format('select exists (select from outrider.%I where %I >= $1 and %I < $2)',
                     parent || '_rest', clock_column, clock_column)
        into occupied using day::timestamptz, (day + 1)::timestamptz;
      continue when occupied;
      begin
        execute format('create table outrider.%I (like outrider.%I including defaults including constraints'
                       ' including storage)', child, parent);
        execute format('alter table outrider.%I attach partition outrider.%I for values from (%L) to (%L)',
                       parent, child, day::timestamptz, (day + 1)::timestamptz);
        return next child;
      exception
        when duplicate_table or check_violation then
          null;  -- another caller was first, or rows have come meanwhile
        when lock_not_available then
          return;
      end;
    end loop;
  end loop;
end
$$;

-- Drops partitions whose last day ended longer ago than asked, unless they hold a row of a delivery that is
-- not terminal. What lies in a default partition is deleted row by row, a bounded number in each call: the
-- publication has inserts only. Returns the names of those that gave something up.
create function outrider.drop_expired_partitions(outbox_days integer, attempt_days integer) returns setof text
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
declare
  parent text;
  clock_column text;
  keep_days integer;
  child text;
  holds_evidence boolean;
  deleted bigint;
begin
  if outbox_days < 1 or attempt_days < 1 then
    raise exception 'retention is at least one day' using errcode = '22023';
  end if;
  perform set_config('lock_timeout', '100ms', true);
  for parent, clock_column, keep_days in
    values ('dispatch_outbox', 'created_at', outbox_days), ('delivery_attempt', 'recorded_at', attempt_days)
  loop
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
        return;
      end;
    end loop;
    execute format(
      'delete from outrider.%1$I where ctid = any (array(
         select p.ctid from outrider.%1$I p
         where p.%2$I < (current_date - $1)::timestamptz
           and not exists (select from outrider.delivery d
                           where d.delivery_id = p.delivery_id and d.settled_at is null)
         limit 10000))', parent || '_rest', clock_column)
      using keep_days;
    get diagnostics deleted = row_count;
    if deleted > 0 then
      return next parent || '_rest';
    end if;
  end loop;
end
$$;

revoke all on function outrider.ensure_partitions, outrider.drop_expired_partitions from public;
grant execute on function outrider.ensure_partitions, outrider.drop_expired_partitions
  to outrider_worker, outrider_operator;

select outrider.ensure_partitions(14);
