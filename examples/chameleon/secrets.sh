#!/bin/bash
# Makes random secrets in ./secrets, once: PostgreSQL and the S3 store keep theirs with the data.
set -euo pipefail
umask 077
cd "$(dirname "$0")"
[[ ! -e secrets ]] || { echo "secrets exists already" >&2; exit 0; }
made=$(mktemp -d ./.secrets-XXXXXX)
hex() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
key=GK$(hex 16)
secret=$(hex 32)
hex 32 >"$made/ray-token"
echo "postgres:5432:mlflow:mlflow:$(hex 24)" >"$made/pgpass"
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$key" "$secret" >"$made/aws"
printf 'GARAGE_DEFAULT_ACCESS_KEY=%s\nGARAGE_DEFAULT_SECRET_KEY=%s\n' "$key" "$secret" >"$made/garage.env"
cat >"$made/garage.toml" <<END
metadata_dir = "/var/lib/garage/meta"
data_dir = "/var/lib/garage/data"
db_engine = "sqlite"
replication_factor = 1
rpc_bind_addr = "[::]:3901"
rpc_public_addr = "127.0.0.1:3901"
rpc_secret = "$(hex 32)"

[s3_api]
s3_region = "us-east-1"
api_bind_addr = "[::]:3900"
END
mv "$made" secrets
