"""``builder verify``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, context_exit, with_context
from builder.cli.options import FILE, flag
from builder.errors import UsageError, VerifyError
from builder.workspace import Workspace

if TYPE_CHECKING:
    from builder.publishing.verify import Trust


@click.command()
@click.argument("image", required=False)
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Accept signatures of this public key. Default: recipes/_policy.yaml. Can be repeated.",
)
@flag("--rebuild", help="Build it again from the attached lock, and compare the manifests.")
@with_context
def verify(context: Context, image: str | None, keys: tuple[Path, ...], rebuild: bool) -> None:
    """Verify a published image: its signature, and what is attached to it.

    IMAGE is TARGET, TARGET:TAG, HOST/REPOSITORY:TAG or HOST/REPOSITORY@DIGEST. Exit with 15 if
    anything is missing or wrong.
    """
    from builder.publishing.destination import open_destination
    from builder.publishing.named import find_subject, named_image
    from builder.publishing.verify import verify as verify_image

    trust, named = _trust(context, keys), named_image(image, context.project_or_none)
    work = Workspace.of(context.settings, context.output)
    with closing(open_destination(named.place, work, option="IMAGE")) as place:
        subject = find_subject(named, place)
        done = verify_image(subject, trust)
    lines = [f"{subject.name} is {subject.digest}"]
    for check in done.checks:
        lines.append(f"  {'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.seen}")
    value = {"image": subject.name, "digest": subject.digest, "verified": done.passed}
    checks = [asdict(check) for check in done.checks]
    context.output.result(value | {"checks": checks}, "\n".join(lines))
    if not done.passed:
        context_exit(VerifyError.exit_code)


def _trust(context: Context, keys: tuple[Path, ...]) -> Trust:
    """Return the policy of the command line, or of the project."""
    from builder.config.policy import POLICY_FILE, Policy
    from builder.publishing.verify import Trust

    if keys:
        return Trust.of(Policy(keys=tuple(str(key.absolute()) for key in keys)))
    found = Trust.find(context.root) if context.root else None
    if found is None:
        hint = "name the public key that may sign: --key FILE"
        raise UsageError(f"there is no {POLICY_FILE} here, so nothing says who may sign", hint)
    return found
