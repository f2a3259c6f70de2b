-- The role stays: it belongs to the server, and other databases may use it.
revoke all on all tables in schema outrider from outrider_api;
revoke usage on schema outrider from outrider_api;
drop index outrider.event_by_time;
drop table outrider.api_key;
