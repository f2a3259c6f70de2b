-- Receivers and their settings.

-- name: load_destinations
select x.destination_id, x.url, x.enabled, x.start_rate_per_second, x.burst, x.concurrency, x.timeout_seconds,
       x.retry_first_delay_seconds, x.retry_factor, x.retry_max_delay_seconds, x.retry_max_attempts,
       x.retry_max_age_seconds, x.allowed_networks::text[] as allowed_networks,
       x.retry_delays_seconds, x.unauthorized_delays_seconds, x.answer_rules, x.static_headers,
       coalesce(s.secrets, '[]') as secrets, to_jsonb(c) as credential,
       x.paused_at is not null as is_paused,
       outrider.rate_share(p.share_at_slowing, p.slowed_at, statement_timestamp()) as rate_share,
       -- As in claim: see deliveries.sql.
       case when p.paused_until > statement_timestamp() then 'throttled'
            when p.open_until > statement_timestamp() or p.probe_until > statement_timestamp() then 'open' end as hold,
       greatest(0, extract(epoch from case when p.paused_until > statement_timestamp() then p.paused_until
                                           else greatest(p.open_until, p.probe_until) end
                                      - statement_timestamp()))::double precision as hold_seconds
from outrider.destination x
join outrider.destination_pace p on p.destination_id = x.destination_id
left join outrider.destination_credential c on c.destination_id = x.destination_id
left join lateral (
  select json_agg(json_build_array(k.secret_id, k.secret) order by k.valid_until desc nulls first, k.created_at desc)
           as secrets
  from outrider.destination_secret k
  where k.destination_id = x.destination_id
    and (k.valid_until is null or k.valid_until > statement_timestamp())
) s on true
where x.destination_id = any (%(destination_ids)s)
