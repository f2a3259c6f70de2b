-- What answers say of a receiver as a whole, beside its tokens: how far it is slowed down, until when it asked to be left
-- alone, and whether the breaker is open. Written with the settlements that say so; see settle in deliveries.sql.
alter table outrider.destination_pace
  -- The part of rate and burst that was in force at slowed_at. It grows back with time: see rate_share below.
  add column share_at_slowing double precision not null default 1 check (share_at_slowing > 0 and share_at_slowing <= 1),
  add column slowed_at   timestamptz,
  -- Retry-After, for the whole lane.
  add column paused_until timestamptz,
  -- The breaker. Failures in a row; open while open_until is ahead; after that one delivery at a time probes, under a
  -- claim that ends by probe_until; openings in a row make the next one longer. NULL: closed.
  add column failures    integer not null default 0,
  add column openings    integer not null default 0,
  add column open_until  timestamptz,
  add column probe_until timestamptz;
grant update (share_at_slowing, slowed_at, paused_until, failures, openings, open_until, probe_until)
  on outrider.destination_pace to outrider_worker;

-- Paused by an operator: takes events, starts nothing. Backlogged: a worker has had to park deliveries for want of room, so
-- until then new ones wait here instead of in Kafka.
alter table outrider.destination
  add column paused_at timestamptz,
  add column paused_reason text,
  add column backlogged_until timestamptz;
grant update (backlogged_until) on outrider.destination to outrider_worker;

-- Messages of a current dispatch that a worker could not handle. Enough of them end the delivery.
alter table outrider.delivery add column dispatches_refused integer not null default 0;
grant update (dispatches_refused) on outrider.delivery to outrider_worker, outrider_operator;

-- What waits for nothing but its destination's rate: taken before its time where the rate allows it after all.
create index delivery_in_line on outrider.delivery (destination_id, next_attempt_at)
  where state = 'pending' and waiting_reason = 'rate';

-- 'turn': due, and never tried before, so that it goes ahead of retries. All rows that are there fit: nothing is read.
alter table outrider.dispatch_outbox drop constraint dispatch_outbox_reason_check;
alter table outrider.dispatch_outbox add constraint dispatch_outbox_reason_check
  check (reason in ('admitted', 'turn', 'due', 'lease_expired', 'lost', 'replay')) not valid;

-- The part of rate and burst that is in force: a minute after a slowing, all of it. One expression, so that the planner
-- puts it in place of the call.
create function outrider.rate_share(share_at_slowing double precision, slowed_at timestamptz, moment timestamptz)
returns double precision language sql immutable parallel safe
return case when slowed_at is null then 1.0::double precision
            else least(1.0, share_at_slowing
              + greatest(0.0, extract(epoch from moment - slowed_at)::double precision) / 60.0) end;

-- Starts that the bucket holds at a moment.
create function outrider.tokens_at(
  tokens double precision, refilled_at timestamptz, rate double precision, burst integer, share double precision,
  moment timestamptz)
returns double precision language sql immutable parallel safe
return least(greatest(1.0, burst * share),
             tokens + rate * share * greatest(0.0, extract(epoch from moment - refilled_at)::double precision));

-- Whether failures open the breaker: enough in a row, or, while it is open, one of a probe, which was claimed after
-- open_until. Answers to what was claimed before that say nothing new.
create function outrider.breaker_opens(
  failures_before integer, open_until timestamptz, failures bigint, failed_at timestamptz, failures_max integer)
returns boolean language sql immutable parallel safe
return failures > 0
  and case when open_until is null then failures_before + failures >= failures_max else failed_at >= open_until end;

revoke all on function outrider.rate_share, outrider.tokens_at, outrider.breaker_opens from public;
grant execute on function outrider.rate_share, outrider.tokens_at, outrider.breaker_opens
  to outrider_worker, outrider_operator;

-- What a destination cannot start soon is admitted as pending and stays out of Kafka, where it would lie in front of other
-- destinations' messages. Two signs tell it, and neither needs a lock or a scan, because the caller's transaction may stay
-- open for long: a worker has marked the destination as backlogged; or this transaction alone has enqueued more than
-- the destination starts in two seconds. That count is a setting local to the transaction, one of 256 by a hash of the
-- destination; where two destinations share one, some deliveries wait for the reconciler that need not. The due times
-- follow the rate, so that such a delivery has its place among retries.
create function outrider.hold_back() returns trigger language plpgsql as $$
declare
  name constant text := 'outrider.enqueued_' || (pg_catalog.hashtext(new.destination_id) & 255);
  enqueued constant integer := coalesce(nullif(pg_catalog.current_setting(name, true), ''), '0')::integer + 1;
  ahead double precision;
begin
  select case when x.backlogged_until > pg_catalog.clock_timestamp() then enqueued
              else enqueued - x.burst - 2 * x.start_rate_per_second end / x.start_rate_per_second
  into ahead
  from outrider.destination x
  where x.destination_id = new.destination_id;
  perform pg_catalog.set_config(name, enqueued::text, true);
  if ahead > 0 then
    new.state := 'pending';
    new.dispatch_seq := 0;
    new.next_attempt_at := pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => least(ahead, 86400));
    new.lost_after := null;
    new.waiting_reason := 'rate';
  end if;
  return new;
end
$$;
revoke all on function outrider.hold_back from public;
create trigger hold_back before insert on outrider.delivery for each row
  when (new.state = 'enqueued') execute function outrider.hold_back();
