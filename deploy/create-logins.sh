#!/bin/sh
# Runs once, when PostgreSQL's data directory is made: a login for each component, in the group role that carries its
# rights. The group roles are those of the migrations, which take them over. Passwords come from files and go nowhere else:
# psql reads them itself, so that they stand in no command line.
set -eu

secrets="${SECRETS_DIRECTORY:-/run/secrets}"

for component in application connector worker reconciler auditor operator api; do
  psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
    --set group="outrider_${component}" --set login="outrider_${component}_login" \
    --set file="${secrets}/${component}_password" <<'SQL'
\set password `cat :'file'`
select format('create role %I nologin', :'group')
where not exists (select from pg_roles where rolname = :'group') \gexec
create role :"login" login password :'password' in role :"group";
SQL
done

# Logical replication needs an attribute that membership in a group does not bring.
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
  --command 'alter role outrider_connector_login replication'
