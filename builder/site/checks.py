"""Checks of a job request that do not depend on the launcher."""

from __future__ import annotations

import re

from builder.config.fields import seconds
from builder.config.recipe import Recipe
from builder.config.site import slurm_of
from builder.errors import UsageError
from builder.site.command import check_gpus
from builder.site.limits import gpu_counts
from builder.site.request import JobRequest
from builder.site.slurm import check_slurm_request, find_queue

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
    check_slurm_request(recipe, request.slurm)
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


def _check_word(option: str, value: str) -> None:
    if value and not _WORD.fullmatch(value):
        message = f"{option} {value!r} contains characters that are not allowed"
        raise UsageError(message, "use letters, digits and . _ + - @ only")


def _gpus_per_node(recipe: Recipe, request: JobRequest) -> int:
    """Return the GPUs asked for; else all of the node, or one, or the least that Slurm gives."""
    if request.gpus is not None:
        return request.gpus
    node, slurm = recipe.site.node, recipe.site.slurm
    if request.nodes > 1 or node.whole:
        return node.gpus
    counts = gpu_counts(slurm, find_queue(recipe.site, "gpu")) if slurm else []
    return min(min(counts, default=1), node.gpus)
