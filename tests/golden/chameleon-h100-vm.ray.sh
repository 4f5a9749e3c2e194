#!/bin/bash
# Chameleon g1.h100.pci.1: target chameleon-h100-vm as a Ray cluster of containers on this machine: one head and 1 worker with one GPU.
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
if ! docker image inspect builder/chameleon-h100-vm:latest >/dev/null 2>&1; then
    echo 'no image builder/chameleon-h100-vm:latest: builder build chameleon-h100-vm --load' >&2
    exit 1
fi

export BUILDER_CHECKPOINT_DIR="$PWD/checkpoints"
export BUILDER_RESUME=
mkdir -p "$BUILDER_CHECKPOINT_DIR"
# Resume from the newest checkpoint, a file or a folder that is not empty; start from the beginning if there is none.
for file in "$BUILDER_CHECKPOINT_DIR"/{*.pt,*.pth,*.ckpt,*.safetensors,*.keras,*.h5,checkpoint-*/,step_*/,global_step*/}; do
    file=${file%/}
    if [[ -s $file && (-f $file || -n $(ls -A "$file")) && (-z $BUILDER_RESUME || $file -nt $BUILDER_RESUME) ]]; then
        BUILDER_RESUME=$file
    fi
done
echo "checkpoint: ${BUILDER_RESUME:-none, starting from the beginning}"

export BUILDER_FOLDER
BUILDER_FOLDER=$(mktemp -d) # for its owner only
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$BUILDER_FOLDER/ray-token"

cat >"$BUILDER_FOLDER/compose.yaml" <<'EOF'
services:
  ray-head:
    image: "builder/chameleon-h100-vm:latest"
    hostname: ray-head
    command: ["ray", "start", "--head", "--port=6379", "--dashboard-host=0.0.0.0", "--dashboard-port=8265", "--metrics-export-port=8080", "--num-cpus=0", "--num-gpus=0", "--block"]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
      BUILDER_CHECKPOINT_DIR: "$BUILDER_CHECKPOINT_DIR"
      BUILDER_RESUME: "$BUILDER_RESUME"
    volumes: ["$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR", "$BUILDER_FOLDER:/builder:ro", "$PWD:/job:ro"]
    ports: ["127.0.0.1::8265", "127.0.0.1::8080"]
    restart: on-failure:3
    shm_size: 12g
  ray-worker-0:
    image: "builder/chameleon-h100-vm:latest"
    hostname: ray-worker-0
    command: ["ray", "start", "--address=ray-head:6379", "--num-cpus=32", "--num-gpus=1", "--block"]
    depends_on: [ray-head]
    environment:
      RAY_AUTH_MODE: "token"
      RAY_AUTH_TOKEN_PATH: "/builder/ray-token"
      MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING: "true"
      BUILDER_CHECKPOINT_DIR: "$BUILDER_CHECKPOINT_DIR"
      BUILDER_RESUME: "$BUILDER_RESUME"
    volumes: ["$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR", "$BUILDER_FOLDER:/builder:ro"]
    restart: unless-stopped
    shm_size: 12g
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["0"]
              capabilities: [gpu]
EOF

# The image contains all packages, so Ray installs nothing for the job.
cat >"$BUILDER_FOLDER/runtime.json" <<'EOF'
{
  "env_vars": {}
}
EOF

# Each script has a cluster of its own.
project=builder-chameleon-h100-vm-$$
cluster=("${compose[@]}" --project-name "$project" --file "$BUILDER_FOLDER/compose.yaml")
end() {
    "${cluster[@]}" down || true
    rm -rf "$BUILDER_FOLDER"
}
trap end EXIT

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
"${cluster[@]}" exec -T ray-head ray job submit --address=http://127.0.0.1:8265 --runtime-env /builder/runtime.json \
    --entrypoint-num-gpus 1 --entrypoint-num-cpus 8 --working-dir /job \
    -- python train.py --note "it's \"100 \\\$\" & more"
