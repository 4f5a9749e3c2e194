"""Checks of a job request that do not depend on the launcher."""

from __future__ import annotations

import re

from builder.config.fields import seconds
from builder.config.recipe import Recipe
from builder.config.site import Site, slurm_of
from builder.errors import UsageError
from builder.settings import expand_home
from builder.site.command import check_gpus
from builder.site.limits import gpu_counts
from builder.site.request import JobRequest
from builder.site.slurm import find_queue

#: The account becomes part of a script's comments.
_WORD = re.compile(r"[\w.@+-]+")


def check_request(recipe: Recipe, request: JobRequest) -> int:
    """Check the numbers and names of a request.

    Returns:
        The GPUs of each node.

    Raises:
        UsageError: a value is not valid; the message names the option.
    """
    check_gpus(recipe, request.gpus)
    gpus = _gpus_per_node(recipe, request)
    if request.tasks is not None and gpus:
        message = "--tasks cannot be used with GPUs: there is one process per GPU"
        raise UsageError(message, "use --gpus N instead")
    if request.time:
        check_time(request.time)
    _check_word("--account", request.account)
    return gpus


def check_account(recipe: Recipe, account: str) -> None:
    """Check the account of a Slurm job.

    Raises:
        UsageError: the site requires one and there is none, or it has another form.
    """
    slurm = slurm_of(recipe.site)
    example = slurm.account_example
    if slurm.account == "required" and not account:
        such_as = f", such as {example}" if example else ""
        message = f"jobs on {recipe.site_title} require an account"
        raise UsageError(message, f"pass --account NAME{such_as}")
    _check_word("--account", account)
    if account and not re.fullmatch(slurm.account_form or ".*", account):
        message = f"--account {account}: {recipe.site_title} has no account of this form"
        raise UsageError(message, f"pass one such as {example}" if example else "check its name")


def check_time(text: str) -> None:
    """Check the form of a time limit.

    Raises:
        UsageError: Slurm would not read it.
    """
    try:
        seconds(text)
    except ValueError as e:
        raise UsageError(f"--time: {e}", "write it as Slurm does: HH:MM:SS, or D-HH:MM") from None


def check_data(text: str) -> None:
    """Check the argument of ``--data``, if it exists on this machine.

    Raises:
        UsageError: it is a folder.
    """
    path = expand_home(text)
    if path.is_dir():
        message = f"--data {text}: is a folder, not a tar"
        raise UsageError(message, f"pack it: tar -cf {path.name or 'data'}.tar -C {text} .")


def _check_word(option: str, value: str) -> None:
    if value and not _WORD.fullmatch(value):
        message = f"{option} {value!r} contains characters that are not allowed"
        raise UsageError(message, "use letters, digits and . _ + - @ only")


def _gpus_per_node(recipe: Recipe, request: JobRequest) -> int:
    if request.gpus is not None:
        return request.gpus
    node = recipe.site.node
    if request.nodes > 1 or node.whole:
        return node.gpus
    return min(_fewest_gpus(recipe.site), node.gpus)


def _fewest_gpus(site: Site) -> int:
    """Return one GPU, or as many as the default partition of GPU jobs gives at least."""
    if site.slurm is None:
        return 1
    return min(gpu_counts(site.slurm, find_queue(site, "gpu")), default=1)
