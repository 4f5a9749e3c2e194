#!/bin/bash
# Chameleon gpu_a100_pcie: target chameleon-a100-pcie as a Ray cluster of containers on this machine: one head and 4 workers with one GPU each.
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
if ! docker image inspect builder/chameleon-a100-pcie:latest >/dev/null 2>&1; then
    echo 'no image builder/chameleon-a100-pcie:latest: builder build chameleon-a100-pcie --load' >&2
    exit 1
fi

export BUILDER_FOLDER
BUILDER_FOLDER=$(mktemp -d) # for its owner only
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$BUILDER_FOLDER/ray-token"

cat >"$BUILDER_FOLDER/compose.yaml" <<'EOF'
services:
  ray-head:
    image: "builder/chameleon-a100-pcie:latest"
    hostname: ray-head
    command: ["ray", "start", "--head", "--port=6379", "--dashboard-host=0.0.0.0", "--dashboard-port=8265", "--metrics-export-port=8080", "--num-cpus=0", "--num-gpus=0", "--block"]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
    volumes: ["food11:/mnt", "$BUILDER_FOLDER:/builder:ro", "$PWD:/job:ro"]
    ports: ["127.0.0.1::8265", "127.0.0.1::8080"]
    restart: on-failure:3
    shm_size: 12g
  ray-worker-0:
    image: "builder/chameleon-a100-pcie:latest"
    hostname: ray-worker-0
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=20", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
    volumes: ["food11:/mnt", "$BUILDER_FOLDER:/builder:ro"]
    restart: unless-stopped
    shm_size: 12g
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["0"]
              capabilities: [gpu]
  ray-worker-1:
    image: "builder/chameleon-a100-pcie:latest"
    hostname: ray-worker-1
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=20", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
    volumes: ["food11:/mnt", "$BUILDER_FOLDER:/builder:ro"]
    restart: unless-stopped
    shm_size: 12g
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["1"]
              capabilities: [gpu]
  ray-worker-2:
    image: "builder/chameleon-a100-pcie:latest"
    hostname: ray-worker-2
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=20", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
    volumes: ["food11:/mnt", "$BUILDER_FOLDER:/builder:ro"]
    restart: unless-stopped
    shm_size: 12g
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["2"]
              capabilities: [gpu]
  ray-worker-3:
    image: "builder/chameleon-a100-pcie:latest"
    hostname: ray-worker-3
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=20", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
    volumes: ["food11:/mnt", "$BUILDER_FOLDER:/builder:ro"]
    restart: unless-stopped
    shm_size: 12g
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["3"]
              capabilities: [gpu]
volumes:
  "food11": {external: true}
EOF

# The image contains all packages, so Ray installs nothing for the job.
cat >"$BUILDER_FOLDER/runtime.json" <<'EOF'
{
  "env_vars": {}
}
EOF

# Each script has a cluster of its own.
project=builder-chameleon-a100-pcie-$$
cluster=("${compose[@]}" --project-name "$project" --file "$BUILDER_FOLDER/compose.yaml")
end() {
    "${cluster[@]}" down || true
    rm -rf "$BUILDER_FOLDER"
}
trap end EXIT

docker volume create food11 >/dev/null # nothing happens if it is there
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
