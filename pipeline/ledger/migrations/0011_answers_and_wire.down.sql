-- Refused while a secret is sealed or of scheme v1a: they would be lost without a trace.
revoke update (enabled, disabled_reason, updated_at) on outrider.destination from outrider_worker;
alter table outrider.delivery_attempt
  drop column response_headers,
  drop column dns_seconds,
  drop column connect_seconds,
  drop column tls_seconds,
  drop column first_byte_seconds;
revoke execute on function outrider.rate_share from outrider_api;
revoke select on outrider.destination_pace from outrider_api;
drop table outrider.destination_credential;
alter table outrider.destination_secret
  drop constraint destination_secret_public_key,
  drop constraint destination_secret_secret_check,
  add constraint destination_secret_secret_check check (secret ~ '^whsec_[A-Za-z0-9+/]+=*$'),
  drop column scheme,
  drop column public_key;
alter table outrider.delivery drop column unauthorized;
drop trigger check_static_headers on outrider.destination;
drop function outrider.check_static_headers;
alter table outrider.destination
  drop column answer_rules,
  drop column retry_delays_seconds,
  drop column unauthorized_delays_seconds,
  drop column static_headers;
