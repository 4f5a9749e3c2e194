"""The keys of a recipe that run programs while an image is built.

``steps`` are commands in the image; ``pip: {build: {NAME: ...}}`` is how the wheel of a source package
is built.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator, Field

from builder.core.datafiles import any_of
from builder.core.text import CONTROL

from .fields import Line, Model, Variable, parsed

#: Names of variables that hold credentials.
_SECRET = any_of(__file__, "secret_variables.txt", re.IGNORECASE)
#: ``https://user:password@host``
_LOGIN = re.compile(r"://[^\s/@:$]*:[^\s/@$]+@")
_RECORDED = "commands and variables of steps are recorded with the image"


def no_secrets(why: str) -> AfterValidator:
    """Return the validator of variables; ``why`` ends its message on one like a credential."""

    def check(env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if _SECRET.search(name) or _LOGIN.search(value):
                raise ValueError(f"{name} looks like a credential, and {why}")
        return env

    return AfterValidator(check)


def _command(value: str) -> str:
    """Validate a shell command, which may have several lines."""
    if not value.strip():
        raise ValueError("is empty: write a shell command")
    if found := CONTROL.search(value.replace("\n", "").replace("\t", "")):
        raise ValueError(f"contains the control character U+{ord(found[0]):04X}")
    if _LOGIN.search(value):
        raise ValueError(f"contains a password in a URL, and {_RECORDED}")
    return value.rstrip("\n")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Command = Annotated[str, AfterValidator(_command)]
_NO_SECRETS = no_secrets(f"{_RECORDED}: download what needs it before, and copy it with files:")


class Step(Model):
    """Commands that run in the image while it is built. What they change becomes one layer."""

    run: Annotated[
        tuple[Command, ...],
        BeforeValidator(_as_list, json_schema_input_type=Command | list[Command]),
        Field(min_length=1),
    ]
    """A shell command, or a list of them. Each runs in a new shell, as root, in ``/``."""
    env: Annotated[dict[Variable, Line], _NO_SECRETS] = Field(default_factory=dict)
    """Environment variables of the commands, in addition to the image's. They are not in the
    image.
    """
    files: bool = False
    """The commands see the recipe's ``files:``; they run again when a file changes."""
    network: bool = False
    """The commands can use the host's network."""
    title: Line = ""
    """The layer's name in the image's history; empty: the first command."""


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
_NO_SECRETS_IN_BUILDS = no_secrets("the settings of builds are recorded in the lock file")


class WheelBuild(Model):
    """How the wheel of one source package is built."""

    env: Annotated[dict[Variable, Line], _NO_SECRETS_IN_BUILDS] = Field(default_factory=dict)
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
