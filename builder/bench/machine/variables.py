"""The environment variables that explain a result, except for those that may hold a secret."""

from __future__ import annotations

import os
import re
from typing import Mapping

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


_ON = "(?!0$|false$|no$|off$).+"
_COMPUTE = ("matmul.", "conv.", "attention")
_REDUCE = ("allreduce",)
_ON_GPU = (*_COMPUTE, "memory.")
_ALL = (*_ON_GPU, "transfer.", "allreduce")
#: Regular expressions for whole names and for values, what they slow down, and their effect; without one,
#: the probe ``gpu.variables`` does not warn: sites set them for good reasons.
_SLOWING = (
    ("(CUDA|HIP)_LAUNCH_BLOCKING", _ON, _ALL, "the host waits for every kernel"),
    ("AMD_SERIALIZE_(KERNEL|COPY)", _ON, _ALL, "the host waits for every kernel"),
    # torch up to 2.5 takes 0 for 1 (pytorch#145661)
    (r"PYTORCH_NO_\w+_MEMORY_CACHING", ".+", _COMPUTE, "every tensor is allocated by the driver"),
    ("NVIDIA_TF32_OVERRIDE", "0", ("matmul.tf32",), "tf32 runs at the speed of fp32"),
    ("NVIDIA_TF32_OVERRIDE", "1", (), "fp32 products have the precision of tf32"),
    ("(HSA|ROC_GLOBAL)_CU_MASK", ".+", _ON_GPU, "programs use a part of the GPU's compute units"),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", r"\d\d?\b.*", _ON_GPU, "programs use a part of the GPU"),
    ("NCCL_P2P_DISABLE", _ON, _REDUCE, "GPUs exchange data through the host's memory"),
    ("NCCL_SHM_DISABLE", _ON, _REDUCE, "processes of a node exchange data through the network"),
    ("NCCL_(ALGO|PROTO)", ".+", _REDUCE, "NCCL does not choose the fastest way by itself"),
    ("NCCL_NVLS_ENABLE", "0", _REDUCE, ""),
    ("NCCL_(P2P_LEVEL|MAX_NCHANNELS|MAX_CTAS|NTHREADS)", ".+", _REDUCE, ""),
    ("HSA_ENABLE_SDMA", "0", ("transfer.",), ""),
    ("TORCH_BLAS_PREFER_HIPBLASLT", "0", ("matmul.",), ""),
)


def slowing(variables: Mapping[str, str], measurement: str = "") -> dict[str, str]:
    """Return the effects of variables that slow GPUs down, by ``NAME=value``.

    Args:
        variables: all of them.
        measurement: only those that slow this one down; empty: only those with an effect to warn
            of.
    """
    return {
        f"{name}={value}": effect
        for name, value in sorted(variables.items())
        for names, values, ids, effect in _SLOWING
        if (measurement.startswith(ids) if measurement else effect)
        and re.fullmatch(names, name)
        and re.fullmatch(values, str(value).strip(), re.IGNORECASE)
    }


def variables() -> dict[str, str]:
    """Return the variables that explain a result, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if _is_recorded(name, value)}


def _is_recorded(name: str, value: str) -> bool:
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return False
    return _RECORDED.fullmatch(name) is not None
