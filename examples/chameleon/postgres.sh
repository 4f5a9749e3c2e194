#!/bin/bash
# PostgreSQL in a container, as its own user. The first start makes a database whose password is in
# /run/secrets/pgpass.
set -euo pipefail
folder=/var/lib/builder-postgres
data=$folder/data
found=(/usr/lib/postgresql/*/bin)
bin=${found[-1]}
own() { setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"; }

if [[ ! -e $data ]]; then
    rm -rf "$folder/new"
    install -d -o postgres -g postgres -m 0700 "$folder" "$folder/new"
    password=$(mktemp)
    chown postgres "$password"
    cut -d: -f5 /run/secrets/pgpass >"$password"
    own "$bin/initdb" --pgdata="$folder/new" --username=mlflow --pwfile="$password" --auth=scram-sha-256 \
        --encoding=UTF8 --locale=C.UTF-8
    rm "$password"
    echo "host all all all scram-sha-256" >>"$folder/new/pg_hba.conf"
    echo "CREATE DATABASE mlflow" | own "$bin/postgres" --single -D "$folder/new" postgres
    mv "$folder/new" "$data"
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups -- \
    "$bin/postgres" -D "$data" -c 'listen_addresses=*' -c unix_socket_directories=/tmp
