-- One row for each attempt, which is little; the minutes are computed from them, since percentiles cannot be added up.
-- Times are UTC, without a zone: DuckDB knows zones only by an extension that it would have to download.
create table if not exists attempt (
  attempt_id       bigint not null,
  recorded_at      timestamp not null,
  delivery_id      varchar not null,
  attempt          integer not null,
  destination_id   varchar not null,
  event_type       varchar not null,
  result           varchar not null,
  started_at       timestamp not null,
  duration_seconds double not null,
  -- As in the ledger: ids alone may come again after a database was restored.
  primary key (attempt_id, recorded_at)
);

-- How far these rows go, written in their transaction.
create table if not exists position (
  topic       varchar not null,
  partition   integer not null,
  next_offset bigint not null,
  primary key (topic, partition)
);

-- Messages that are no attempts, so that nothing is passed over in silence.
create table if not exists defect (
  topic      varchar not null,
  partition  integer not null,
  log_offset bigint not null,
  problem    varchar not null,
  primary key (topic, partition, log_offset)
);

-- An attempt whose lease ended has a second row when its result comes late, so attempts are counted by their numbers.
-- Of a lease that ended nobody knows how long the request took.
create or replace view minute as
select time_bucket(interval '1 minute', started_at)                                              as minute,
       destination_id,
       event_type,
       count(distinct (delivery_id, attempt))                                                    as attempts,
       count(*) filter (where result = 'succeeded')                                              as succeeded,
       count(*) filter (where result = 'succeeded') / count(distinct (delivery_id, attempt))     as success_rate,
       quantile_cont(duration_seconds, 0.5) filter (where result <> 'lease_expired')             as p50_seconds,
       quantile_cont(duration_seconds, 0.95) filter (where result <> 'lease_expired')            as p95_seconds,
       quantile_cont(duration_seconds, 0.99) filter (where result <> 'lease_expired')            as p99_seconds
from attempt
group by all;
