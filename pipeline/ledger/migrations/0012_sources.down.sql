-- The role stays: it belongs to the server, and other databases may use it.
drop function outrider.forget_empty_passes, outrider.wake_source, outrider.live_shards, outrider.shard_of;
revoke all on function outrider.admit_many from outrider_reconciler;
revoke all on all tables in schema outrider from outrider_reconciler;
revoke usage on schema outrider from outrider_reconciler;
drop index outrider.run_of_source;
drop table outrider.source_shadow, outrider.source_refusal, outrider.source_wakeup, outrider.source_shard, outrider.source;
-- A key that may do nothing else is revoked: it has nothing left to do.
update outrider.api_key
set revoked_at = coalesce(revoked_at, clock_timestamp()), revoked_by = coalesce(revoked_by, session_user), scopes = '{read}'
where scopes <@ '{wake}';
update outrider.api_key set scopes = array_remove(scopes, 'wake') where 'wake' = any (scopes);
alter table outrider.api_key drop constraint api_key_scopes_check;
alter table outrider.api_key add constraint api_key_scopes_check
  check (cardinality(scopes) > 0 and scopes <@ array['admit', 'read', 'operate']);
