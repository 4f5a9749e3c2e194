"""Names that a user may have meant instead of one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: What people write (names of modules, and of the other index) -> names on conda-forge.
_CONDA = {
    "torch": "pytorch",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "cv2": "opencv",
    "opencv-python": "opencv",
    "opencv-python-headless": "opencv",
    "pil": "pillow",
    "yaml": "pyyaml",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "msgpack": "msgpack-python",
    "tables": "pytables",
    "pytorch-cpu": "pytorch",
    "faiss-cpu": "faiss",
}
#: The same with names on PyPI.
_PIP = {
    "pytorch": "torch",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "cv2": "opencv-python-headless",
    "opencv": "opencv-python-headless",
    "pil": "pillow",
    "yaml": "pyyaml",
    "dateutil": "python-dateutil",
    "pytables": "tables",
    "tensorflow-gpu": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "torch-gpu": "torch",
}
#: Packages of PyPI that are typed often, for indexes that cannot be searched.
_KNOWN_PIP = (
    "accelerate aiohttp anyio attrs beautifulsoup4 black bokeh boto3 botorch click cupy-cuda12x cython dask "
    "datasets deepspeed diffusers einops fastapi flask gpytorch h5py hydra-core imageio ipython jax jaxlib "
    "jinja2 joblib jupyter jupyterlab keras lightgbm lightning matplotlib mlflow mpi4py networkx numba numpy "
    "omegaconf opencv-python opencv-python-headless optuna pandas peft pillow plotly polars protobuf psutil "
    "pyarrow pydantic pytest python-dateutil pytorch-lightning pyyaml ray requests rich safetensors "
    "scikit-image scikit-learn scipy seaborn sentencepiece setuptools sqlalchemy statsmodels sympy tables "
    "tensorboard tensorflow tiktoken timm tokenizers torch torchaudio torchmetrics torchvision tqdm "
    "transformers triton typer uvicorn vllm wandb wheel xarray xformers xgboost zarr"
)


def likely_conda(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names of a channel that may be meant by ``name``, the likeliest first.

    Args:
        name: what the channel does not have.
        known: the names of all its packages.
    """
    names = set(known)
    alias = _CONDA.get(name.lower(), "")
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.7)
    return ([alias] if alias in names else []) + [n for n in near if n != alias]


def likely_pip(name: str, known: Iterable[str] = ()) -> list[str]:
    """Up to three packages that may be meant by ``name``, the likeliest first.

    Args:
        name: what no index has.
        known: names that are available here, in addition to well-known packages of PyPI.
    """
    alias = _PIP.get(name.lower(), "")
    names = {*_KNOWN_PIP.split(), *known}
    return [alias] if alias else difflib.get_close_matches(name.lower(), sorted(names), n=3, cutoff=0.7)
