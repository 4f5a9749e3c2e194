"""The policy of a project: who may sign its images, and what must be attached to them.

It is ``recipes/_policy.yaml`` (or ``.yml``). Where it exists, ``builder pull`` and ``builder job`` verify.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .explain import validated
from .fields import Line, Model
from .yamlfile import load_yaml

POLICY_FILE = "recipes/_policy.yaml"
Attestation = Literal["sbom", "provenance", "smoke"]


class Policy(Model):
    """What ``builder verify`` requires of an image."""

    keys: Annotated[tuple[Line, ...], Field(min_length=1)]
    """Files with public keys (PEM), relative to the policy's folder. A signature by one counts."""
    require: tuple[Attestation, ...] = ("sbom", "provenance", "smoke")
    """What must be attached, be about this image and, for ``smoke``, have passed."""
    max_age_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """Days after which the signature of a tag that moves (``latest``) is too old. None: never."""
    source: Path = Path()
    """The file."""

    @property
    def key_files(self) -> tuple[Path, ...]:
        """The files with the public keys."""
        return tuple(self.source.parent / name for name in self.keys)


def find_policy(root: Path) -> Policy | None:
    """Return the policy of a project folder; None if there is none.

    Raises:
        ConfigError: the file is wrong; the message names file, line and key.
    """
    path = _policy_file(root)
    if path is None:
        return None
    yaml = load_yaml(path)
    return validated(Policy, {**yaml.data, "source": path}, [yaml])


def has_policy(root: Path) -> bool:
    """Return whether a project folder has a policy; a link that leads nowhere counts as one."""
    return _policy_file(root) is not None


def _policy_file(root: Path) -> Path | None:
    paths = (root / POLICY_FILE, (root / POLICY_FILE).with_suffix(".yml"))  # as recipes
    return next((path for path in paths if path.exists() or path.is_symlink()), None)
