-- Credentials of destinations, and secrets under a new key.

-- name: begin_credential
insert into outrider.destination_credential (destination_id) values (%(destination_id)s) on conflict do nothing

-- name: set_credential
update outrider.destination_credential
set authorization_value = case when 'authorization_value' = any (%(names)s) then %(authorization_value)s
                               else authorization_value end,
    authorization_kind = case when 'authorization_kind' = any (%(names)s) then %(authorization_kind)s
                              else authorization_kind end,
    ca = case when 'ca' = any (%(names)s) then %(ca)s else ca end,
    client_certificate = case when 'client_certificate' = any (%(names)s) then %(client_certificate)s
                              else client_certificate end,
    client_key = case when 'client_key' = any (%(names)s) then %(client_key)s else client_key end,
    changed_at = clock_timestamp()
where destination_id = %(destination_id)s

-- name: sealing_standing
select (regexp_match(s.text, '^sealed:1:([^:]+):'))[1] as key_id, count(*) as secrets
from (
  select secret as text from outrider.destination_secret
  union all
  select authorization_value from outrider.destination_credential where authorization_value is not null
  union all
  select client_key from outrider.destination_credential where client_key is not null
) s
group by 1
order by 1 nulls first

-- name: page_of_secrets
select k.secret_id, k.destination_id, 'secret', k.secret
from outrider.destination_secret k
where k.secret_id > %(after)s
  and k.secret not like %(current)s
order by k.secret_id
limit %(limit)s

-- name: page_of_credentials
-- Both columns of a row come in the same page.
select c.destination_id, c.destination_id, v.name, v.text
from (
  select *
  from outrider.destination_credential c
  where c.destination_id > %(after)s
    and (c.authorization_value not like %(current)s or c.client_key not like %(current)s)
  order by c.destination_id
  limit %(limit)s
) c
cross join lateral (
  values ('authorization_value', c.authorization_value), ('client_key', c.client_key)
) v(name, text)
where v.text is not null
order by c.destination_id

-- name: reseal_secret
update outrider.destination_secret set secret = %(renewed)s
where secret_id = %(row_id)s and secret = %(before)s and secret <> %(renewed)s

-- name: reseal_authorization_value
update outrider.destination_credential set authorization_value = %(renewed)s
where destination_id = %(row_id)s and authorization_value = %(before)s and authorization_value <> %(renewed)s

-- name: reseal_client_key
update outrider.destination_credential set client_key = %(renewed)s
where destination_id = %(row_id)s and client_key = %(before)s and client_key <> %(renewed)s
