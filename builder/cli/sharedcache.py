"""``--cache-from`` and ``--cache-to``: a cache in a registry that machines share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from builder.cli.context import Context
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.oci.reference import Reference


def shared_cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command that builds. They apply while the command runs."""

    @click.option(
        "--cache-from",
        envvar="BUILDER_CACHE_FROM",
        metavar="HOST/REPOSITORY",
        help="Take layers from this shared cache in a registry. Needs $BUILDER_CACHE_KEY.",
    )
    @click.option(
        "--cache-to",
        envvar="BUILDER_CACHE_TO",
        metavar="HOST/REPOSITORY",
        help="Store layers in this shared cache in a registry. Needs $BUILDER_CACHE_KEY.",
    )
    @functools.wraps(command)
    def run(context: Context, /, cache_from: str | None, cache_to: str | None, **values: Any) -> Any:
        if not cache_from and not cache_to:
            return command(context, **values)
        from builder.registry.shared import RegistryCache, check_secret

        secret = check_secret(os.environ.get("BUILDER_CACHE_KEY", ""))
        source, target = _repository(cache_from, "--cache-from"), _repository(cache_to, "--cache-to")
        store = context.project.store
        with RegistryCache(source, target, secret, store, context.settings, context.output) as cache:
            store.shared = cache
            return command(context, **values)

    return run


def refuse_shared_cache_options(option: str) -> None:
    """Raises UsageError if the options are on a command line whose build runs elsewhere, in a job."""
    context = click.get_current_context()
    for name, variable in (("cache_from", "BUILDER_CACHE_FROM"), ("cache_to", "BUILDER_CACHE_TO")):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            shown = f"--{name.replace('_', '-')}"
            raise UsageError(f"{shown} and {option} exclude each other", f"the job reads ${variable}: set it")


def _repository(text: str | None, option: str) -> Reference | None:
    from builder.oci.reference import Reference

    if not text:
        return None
    reference = Reference.parse(text)
    if reference.tag or reference.digest:
        raise UsageError(
            f"{option} {text}: contains a tag or digest, but must be a repository",
            f"write {option} {reference.name}",
        )
    return reference
