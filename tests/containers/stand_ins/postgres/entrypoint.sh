#!/bin/bash
# As in the official image, POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB create a new cluster in PGDATA.
set -eu
mkdir -p "$PGDATA" && chmod 0700 "$PGDATA"
if ! test -s "$PGDATA/PG_VERSION"; then
	: "${POSTGRES_PASSWORD:?}" "${POSTGRES_USER:=postgres}" "${POSTGRES_DB:=$POSTGRES_USER}"
	initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --encoding=UTF8 --locale=C.UTF-8
	printf 'host all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
	test "$POSTGRES_DB" = postgres || echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single postgres >/dev/null
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
