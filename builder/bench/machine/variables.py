"""The environment variables that explain a result. None of those that are reported holds a secret."""

from __future__ import annotations

import os
import re

from .files import read

#: Whole names.
_RECORDED = re.compile(
    # which GPUs, and how the driver uses them
    r"(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|GPU_MAX_HW_QUEUES|HIP_LAUNCH_BLOCKING|"
    r"CUDA_(LAUNCH_BLOCKING|MODULE_LOADING|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|(FORCE|DISABLE)_PTX_JIT)|"
    r"CUDA_CACHE_(PATH|DISABLE)|CUDA_MPS_\w+|AMD_SERIALIZE_(KERNEL|COPY)|HSA_\w+|ROC_GLOBAL_CU_MASK|"
    # the libraries
    r"NVIDIA_TF32_OVERRIDE|(CUBLAS|CUBLASLT|HIPBLASLT|ROCBLAS|MIOPEN)_\w+|"
    r"TORCH_(ALLOW|BLAS|LINALG|ROCM|CUDNN|CUBLASLT|NCCL|DISTRIBUTED)_\w+|"
    r"PYTORCH_(NO_)?(CUDA_|HIP_)?(ALLOC_CONF|MEMORY_CACHING)|PYTORCH_TUNABLEOP_\w+|"
    r"TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR|"
    # the network
    r"NCCL_\w+|GLOO_SOCKET_IFNAME|(FI|UCX)_\w+|"
    # the processor, and the job
    r"(OMP|MKL)_NUM_THREADS|SLURM_(STEP_NUM_TASKS|STEP_NODELIST|CPUS_PER_TASK|GPU\w*)|WORLD_SIZE|"
    # the container
    r"LD_(LIBRARY_PATH|PRELOAD)|PYTHON(PATH|HOME|NOUSERSITE)|CONDA_PREFIX|SSL_CERT_(FILE|DIR)|"
    r"LANG|LC_ALL|TZ|HOME|TMPDIR"
)
#: Names and values that are never reported, although a library may have a variable of this kind.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL")
_SECRET_VALUE = re.compile(r"://[^/\s]*@")


def variables() -> dict[str, str]:
    """The variables that explain a result, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if _is_recorded(name, value)}


def _is_recorded(name: str, value: str) -> bool:
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return False
    return _RECORDED.fullmatch(name) is not None


def nccl_files() -> list[str]:
    """The files that set variables of NCCL without the environment, as far as they can be read."""
    own = os.path.join(os.path.expanduser("~"), ".nccl.conf")
    return [path for path in ("/etc/nccl.conf", own) if read(path)]


def settings() -> dict[str, str]:
    """All variables, and those that NCCL's files set; the environment comes first."""
    out: dict[str, str] = {}
    for path in nccl_files():
        for line in read(path).splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip().startswith("NCCL_"):
                out[name.strip()] = value.strip()
    return {**out, **os.environ}
