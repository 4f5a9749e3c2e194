"""The key ``pip: {build: {NAME: ...}}`` of a recipe: how the wheel of a source package is built."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field

from .fields import Line, Model, Variable, parsed
from .steps import no_secrets

#: The name of a Python package, normalised by PEP 503.
PackageName = Annotated[
    Line,
    parsed(partial(canonicalize_name, validate=True), "is not the name of a Python package"),
    AfterValidator(canonicalize_name),
]
#: A requirement of pip: ``ninja``, ``cython<3``.
Requirements = Annotated[
    Line,
    parsed(Requirement, "is not a pip requirement: REASON (write NAME or NAME==VERSION)"),
]
_NO_SECRETS = no_secrets("the settings of builds are recorded in the lock file")


class WheelBuild(Model):
    """How the wheel of one source package is built."""

    env: Annotated[dict[Variable, Line], _NO_SECRETS] = Field(default_factory=dict)
    """Environment variables of the build."""
    needs: tuple[Requirements, ...] = ()
    """Build requirements in addition to those that the package declares."""
    no_isolation: bool = False
    """The build sees the packages of the image (torch, numpy), and of the declared build
    requirements only those that ``needs`` lists are added. False: it sees its build requirements
    alone."""
    network: bool = False
    """The build may use the network. Its wheel then depends on what servers returned."""
    config_settings: dict[Line, Line] = Field(default_factory=dict)
    """Settings for the package's build backend, as pip's ``--config-settings``."""
    base_packages: tuple[Line, ...] = ()
    """Debian packages (compilers, headers) for the build alone: the image does not get them."""
