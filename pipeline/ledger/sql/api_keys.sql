-- Keys of the HTTP API.

-- name: create_key
-- None where as many keys are active as an API process holds.
insert into outrider.api_key (
  key_id, name, secret_sha256, scopes, requests_per_second, bytes_per_second, in_flight_max, created_by, expires_at)
select %(key_id)s, %(name)s, %(secret_sha256)s, %(scopes)s, %(requests_per_second)s, %(bytes_per_second)s,
       %(in_flight_max)s, %(created_by)s, %(expires_at)s
where %(active_max)s > (select count(*) from outrider.api_key k
                        where k.revoked_at is null and (k.expires_at is null or k.expires_at > statement_timestamp()))
returning key_id

-- name: list_keys
select k.key_id, k.name, k.scopes, k.requests_per_second, k.bytes_per_second, k.in_flight_max, k.created_at, k.created_by,
       k.expires_at, k.revoked_at, k.revoked_by, k.last_used_at,
       k.expires_at is not null and k.expires_at <= statement_timestamp() as is_expired
from outrider.api_key k
order by k.created_at, k.key_id

-- name: revoke_key
-- Revoking again changes nothing.
update outrider.api_key
set revoked_at = coalesce(revoked_at, statement_timestamp()),
    revoked_by = coalesce(revoked_by, %(revoked_by)s)
where key_id = %(key_id)s
returning key_id

-- name: active_keys
select k.key_id, k.secret_sha256, k.scopes, k.requests_per_second, k.bytes_per_second, k.in_flight_max, k.expires_at
from outrider.api_key k
where k.revoked_at is null
  and (k.expires_at is null or k.expires_at > statement_timestamp())
order by k.created_at, k.key_id
limit %(limit)s

-- name: record_uses
update outrider.api_key k
set last_used_at = u.used_at
from unnest(%(key_ids)s::text[], %(used_at)s::timestamptz[]) as u(key_id, used_at)
where k.key_id = u.key_id
  and (k.last_used_at is null or k.last_used_at < u.used_at)
