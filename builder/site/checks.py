"""Checks of a job request that do not depend on the launcher."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from builder.config.fields import seconds
from builder.config.recipe import Recipe
from builder.config.site import Site, slurm_of
from builder.errors import UsageError
from builder.settings import expand_home
from builder.site.command import check_gpus
from builder.site.limits import gpu_counts
from builder.site.request import JobRequest
from builder.site.slurm import find_queue
from builder.tarheaders import BLOCK, is_header
from builder.trees.inflate import MAX_ZSTD_WINDOW

#: Account and job name become part of a script's comments.
_WORD = re.compile(r"[\w.@+-]+")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: By the first bytes of a file.
_OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


def check_request(recipe: Recipe, request: JobRequest) -> int:
    """Checks the numbers and names of a request.

    Returns:
        The GPUs of each node.

    Raises:
        UsageError: a value is not valid; the message names the option.
    """
    _check_counts(request)
    check_gpus(recipe, request.gpus)
    gpus = _gpus_per_node(recipe, request)
    if request.tasks is not None and gpus:
        raise UsageError(
            "--tasks cannot be used with GPUs: there is one process per GPU", "use --gpus N instead"
        )
    _check_text(request)
    _check_word("--account", request.account)
    _check_word("--name", request.name)
    return gpus


def check_account(recipe: Recipe, account: str) -> None:
    """Checks the account of a Slurm job.

    Raises:
        UsageError: the site requires one and there is none, or it has another form.
    """
    slurm = slurm_of(recipe.site)
    example = slurm.account_example
    if slurm.account == "required" and not account:
        such_as = f", such as {example}" if example else ""
        raise UsageError(f"jobs on {recipe.site_title} require an account", f"pass --account NAME{such_as}")
    _check_word("--account", account)
    if account and not re.fullmatch(slurm.account_form or ".*", account):
        raise UsageError(
            f"--account {account}: {recipe.site_title} has no account of this form",
            f"pass one such as {example}" if example else "check its name",
        )


def check_time(text: str) -> None:
    """Checks the form of a time limit.

    Raises:
        UsageError: Slurm would not read it.
    """
    try:
        seconds(text)
    except ValueError as e:
        raise UsageError(f"--time: {e}", "write it as Slurm does: HH:MM:SS, or D-HH:MM") from None


def check_options(recipe: Recipe, request: JobRequest) -> None:
    """Checks ``--time`` and ``--check-fabric``.

    Raises:
        UsageError: the time is not valid, or the network plugin cannot be checked.
    """
    if request.time:
        check_time(request.time)
    if not request.check_fabric:
        return
    if recipe.site.fabric.check is None:
        raise UsageError(
            f"{recipe.site_title}: the recipe does not define how to check the network plugin",
            "add site.fabric.check to the recipe",
        )
    if request.nodes == 1:
        raise UsageError("--check-fabric needs more than one node", "pass --nodes 2")


def check_data(text: str) -> None:
    """Checks the argument of ``--data``, if it exists on this machine.

    Raises:
        UsageError: it is a folder, or a file that is not a tar.
    """
    path = expand_home(text)
    if path.is_dir():
        raise UsageError(
            f"--data {text}: is a folder, not a tar",
            f"pack it: tar -cf {path.name or 'data'}.tar -C {text} .",
        )
    if path.is_file() and not _is_tar(path):
        raise UsageError(f"--data {text}: is not a tar", "pass a .tar, .tar.gz, .tar.xz or .tar.zst file")


def _check_counts(request: JobRequest) -> None:
    if request.nodes < 1:
        raise UsageError(
            f"--nodes must be at least 1, not {request.nodes}", "pass the number of nodes, or leave it out"
        )
    if request.chain is not None and request.chain < 1:
        raise UsageError(
            f"--chain must be at least 1, not {request.chain}",
            "pass the number of segments, or leave it out for a single job",
        )
    if request.tasks is not None and request.tasks < 1:
        raise UsageError(
            f"--tasks must be at least 1, not {request.tasks}", "pass the number of processes per node"
        )


def _check_text(request: JobRequest) -> None:
    """Refuses undecodable bytes of the command line, which a script in UTF-8 cannot have."""
    values = [request.data, request.checkpoint, request.image, request.env_file]
    values += [request.resume_args, request.mlflow, *request.patterns]
    words = [*request.command, *request.warmup, *request.binds, *values]
    words += [value for value in request.env.values() if value is not None]
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{word!r} is not UTF-8, as job scripts are", "rename the file") from None


def _check_word(option: str, value: str) -> None:
    if value and not _WORD.fullmatch(value):
        raise UsageError(
            f"{option} {value!r} contains characters that are not allowed",
            "use letters, digits and . _ + - @ only",
        )


def _gpus_per_node(recipe: Recipe, request: JobRequest) -> int:
    if request.gpus is not None:
        return request.gpus
    available = recipe.site.node.gpus
    return available if request.nodes > 1 else min(_fewest_gpus(recipe.site), available)


def _fewest_gpus(site: Site) -> int:
    """One GPU, or as many as the default partition of GPU jobs gives at least."""
    if site.slurm is None:
        return 1
    return min(gpu_counts(site.slurm, find_queue(site, "gpu")), default=1)


def _is_tar(path: Path) -> bool:
    try:
        with _uncompressed(path) as file:
            block = file.read(BLOCK)
        return len(block) == BLOCK and (not any(block) or is_header(block))
    except PermissionError:
        return True  # the job may be able to read it
    except Exception:  # a damaged archive: each decompressor raises its own errors
        return False


def _uncompressed(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(_ZSTD_MAGIC):
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
        return cast(IO[bytes], decompressor.stream_reader(path.open("rb"), closefd=True))
    return cast(IO[bytes], next((o for m, o in _OPENERS.items() if magic.startswith(m)), open)(path, "rb"))
