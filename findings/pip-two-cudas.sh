#!/usr/bin/env bash
# Wheels of one NVIDIA library for two versions of CUDA have the same files, and pip installs both without a word.
#
# Versions: pip 26.3, Python 3.11; nvidia-nvshmem-cu12 and nvidia-nvshmem-cu13, both 3.3.20.
# Behaviour: nvidia-NAME-cu12 and nvidia-NAME-cu13 are different distributions, so no resolver sees a conflict. nccl,
# cudnn, nvshmem and cusparselt put their libraries into nvidia/NAME/lib for each CUDA, with the same names and
# sonames: what is installed last replaces the other. The libraries of CUDA itself are apart since 13: nvidia-cublas
# has nvidia/cu13/lib, nvidia-cublas-cu12 nvidia/cublas/lib. Removing one of the two leaves the other without files.
# Output seen:
#   files of nvidia-nvshmem-cu12 that nvidia-nvshmem-cu13 has replaced: 15
#   pip check: No broken requirements found.
#   after the removal of one, libnvshmem_host.so.3 of the other: missing
# Who is hurt: environments with torch 2.15 (CUDA 13) and jax[cuda12] 0.12, xgboost 3.3 or tensorflow[and-cuda]
# 2.21 (CUDA 12). Each framework was tested with its own NCCL and cuDNN, and one of them loads the other's.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip=$work/venv/bin/pip
"$pip" install --quiet pip==26.3
"$pip" install --quiet --no-deps nvidia-nvshmem-cu12==3.3.20
"$pip" install --quiet --no-deps nvidia-nvshmem-cu13==3.3.20

cat >"$work/replaced.py" <<'PYTHON'
"""Print the number of files of the first distribution whose hash in RECORD is not that of the file."""
import base64, hashlib, importlib.metadata

replaced = 0
for file in importlib.metadata.files("nvidia-nvshmem-cu12"):
    if file.hash is not None and file.locate().is_file():
        digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        replaced += base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value
print(replaced)
PYTHON
replaced=$("$work/venv/bin/python" "$work/replaced.py")
check=$("$pip" check)
"$pip" uninstall --quiet --yes nvidia-nvshmem-cu13
library=$(find "$work/venv" -name libnvshmem_host.so.3)
echo "files of nvidia-nvshmem-cu12 that nvidia-nvshmem-cu13 has replaced: $replaced"
echo "pip check: $check"
echo "after the removal of one, libnvshmem_host.so.3 of the other: ${library:-missing}"
[ "$replaced" -gt 0 ] && [ "$check" = "No broken requirements found." ] && [ -z "$library" ]
