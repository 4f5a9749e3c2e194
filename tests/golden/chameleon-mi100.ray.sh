#!/bin/bash
# Chameleon gpu_mi100: target chameleon-mi100 as a Ray cluster of containers on this machine: one head and 2 workers with one GPU each.
# Written by builder job; run it in the folder of the training with: bash FILE

set -euo pipefail

BUILDER_JOB_ID=$(date +%Y%m%dT%H%M%S)-$$
export BUILDER_JOB_ID
if docker compose version >/dev/null 2>&1; then
    compose=(docker compose)
elif command -v docker-compose >/dev/null; then
    compose=(docker-compose)
else
    echo "docker compose is not installed: install the package docker-compose-plugin" >&2
    exit 1
fi
# No registry has this image, and compose would ask one.
if ! docker image inspect builder/chameleon-mi100:latest >/dev/null 2>&1; then
    echo 'no image builder/chameleon-mi100:latest: builder build chameleon-mi100 --load' >&2
    exit 1
fi

export BUILDER_CHECKPOINT_DIR=s3://ray
export BUILDER_RESUME=

# The folder for the data, on this machine's own storage.
export BUILDER_DATA="/tmp/$USER-builder/data-$BUILDER_JOB_ID"
# Makes a folder. In one that users share, such as /tmp, it must be mine alone: others could exchange its files.
private_folder() {
    local path=${1%/} parent error
    [[ $PWD/ != "$path"/* ]] || return 0 # the job works in or below it
    [[ $path == /* ]] || path=$PWD/$path
    parent=${path%/*}
    private_folder "$parent" || return
    if [[ ! -k ${parent:-/} ]]; then # not shared: no sticky bit
        [[ -d $path ]] || mkdir -p "$path"
    elif ! error=$(mkdir -m 700 "$path" 2>&1) && [[ $(stat -c "%u %A" "$path") != @(0|"$EUID")\ d????-??-? ]]; then
        echo "$error; it must be yours and closed to others: remove it, or change the site's local and folders" >&2
        return 1
    fi
}
private_folder "$BUILDER_DATA"

export BUILDER_FOLDER
BUILDER_FOLDER=$(mktemp -d) # for its owner only
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$BUILDER_FOLDER/ray-token"

cat >"$BUILDER_FOLDER/compose.yaml" <<'EOF'
services:
  ray-head:
    image: "builder/chameleon-mi100:latest"
    hostname: ray-head
    command: ["ray", "start", "--head", "--port=6379", "--dashboard-host=0.0.0.0", "--dashboard-port=8265", "--metrics-export-port=8080", "--num-cpus=0", "--num-gpus=0", "--block"]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
      MLFLOW_TRACKING_URI: "http://10.0.0.5:8000"
      MLFLOW_TRACKING_USERNAME:
      MLFLOW_TRACKING_PASSWORD:
      MLFLOW_TRACKING_TOKEN:
      BUILDER_CHECKPOINT_DIR: "s3://ray"
      AWS_ACCESS_KEY_ID:
      AWS_SECRET_ACCESS_KEY:
      AWS_ENDPOINT_URL:
      AWS_DEFAULT_REGION:
      BUILDER_DATA: "$BUILDER_DATA"
    volumes: ["$BUILDER_DATA:$BUILDER_DATA:ro", "$BUILDER_FOLDER:/builder:ro", "$PWD:/job:ro"]
    ports: ["127.0.0.1::8265", "127.0.0.1::8080"]
    restart: on-failure:3
    shm_size: 12g
  ray-worker-0:
    image: "builder/chameleon-mi100:latest"
    hostname: ray-worker-0
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=32", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
      MLFLOW_TRACKING_URI: "http://10.0.0.5:8000"
      MLFLOW_TRACKING_USERNAME:
      MLFLOW_TRACKING_PASSWORD:
      MLFLOW_TRACKING_TOKEN:
      BUILDER_CHECKPOINT_DIR: "s3://ray"
      AWS_ACCESS_KEY_ID:
      AWS_SECRET_ACCESS_KEY:
      AWS_ENDPOINT_URL:
      AWS_DEFAULT_REGION:
      BUILDER_DATA: "$BUILDER_DATA"
      HIP_VISIBLE_DEVICES: "0"
    volumes: ["$BUILDER_DATA:$BUILDER_DATA:ro", "$BUILDER_FOLDER:/builder:ro"]
    devices: ["/dev/kfd", "/dev/dri/renderD128"]
    group_add: ["video"]
    restart: unless-stopped
    shm_size: 12g
  ray-worker-1:
    image: "builder/chameleon-mi100:latest"
    hostname: ray-worker-1
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=32", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
      MLFLOW_TRACKING_URI: "http://10.0.0.5:8000"
      MLFLOW_TRACKING_USERNAME:
      MLFLOW_TRACKING_PASSWORD:
      MLFLOW_TRACKING_TOKEN:
      BUILDER_CHECKPOINT_DIR: "s3://ray"
      AWS_ACCESS_KEY_ID:
      AWS_SECRET_ACCESS_KEY:
      AWS_ENDPOINT_URL:
      AWS_DEFAULT_REGION:
      BUILDER_DATA: "$BUILDER_DATA"
      HIP_VISIBLE_DEVICES: "0"
    volumes: ["$BUILDER_DATA:$BUILDER_DATA:ro", "$BUILDER_FOLDER:/builder:ro"]
    devices: ["/dev/kfd", "/dev/dri/renderD129"]
    group_add: ["video"]
    restart: unless-stopped
    shm_size: 12g
EOF

# The image contains all packages, so Ray installs nothing for the job.
cat >"$BUILDER_FOLDER/runtime.json" <<'EOF'
{
  "env_vars": {
    "MLFLOW_TRACKING_URI": "http://10.0.0.5:8000"
  }
}
EOF

# Each script has a cluster of its own.
project=builder-chameleon-mi100-$$
cluster=("${compose[@]}" --project-name "$project" --file "$BUILDER_FOLDER/compose.yaml")
end() {
    "${cluster[@]}" down || true
    rm -rf "$BUILDER_FOLDER" "$BUILDER_DATA"
}
trap end EXIT

tar --extract --file="$PWD/set.tar" --directory="$BUILDER_DATA"

"${cluster[@]}" up --detach
# Prints the id of the head's container while it runs.
head=(docker ps --quiet --filter "label=com.docker.compose.project=$project"
    --filter label=com.docker.compose.service=ray-head)
for ((try = 0; ; try++)); do
    if "${cluster[@]}" exec -T ray-head ray job list --address=http://127.0.0.1:8265 >/dev/null 2>&1; then
        break
    elif ((try == 60)) || [[ -z $("${head[@]}") ]]; then
        echo "the Ray cluster does not answer, or its head has exited; the log:" >&2
        "${cluster[@]}" logs >&2
        exit 1
    fi
    sleep 2
done
address=$("${cluster[@]}" port ray-head 8265)
echo "dashboard: http://$address, elsewhere by ssh -L 8265:$address HOST; token: $BUILDER_FOLDER/ray-token" >&2
"${cluster[@]}" exec -T ray-head ray job submit --address=http://127.0.0.1:8265 --runtime-env /builder/runtime.json --working-dir /job \
    -- python train.py --note "it's \"100 \\\$\" & more"
