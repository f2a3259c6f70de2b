-- Group roles without login. Grant one of them to the login of each component:
--   create role media_app login in role outrider_application;
-- Roles belong to the whole server, so another database may have made them already, even in this moment.
do $$
declare
  wanted text;
begin
  foreach wanted in array array[
    'outrider_application', 'outrider_connector', 'outrider_worker', 'outrider_operator', 'outrider_auditor'
  ] loop
    begin
      execute format('create role %I nologin', wanted);
    exception when duplicate_object or unique_violation then
      null;
    end;
  end loop;
end
$$;

create schema outrider;
create schema outrider_audit;

grant usage on schema outrider
  to outrider_application, outrider_connector, outrider_worker, outrider_operator;
grant usage on schema outrider_audit to outrider_auditor, outrider_operator;
