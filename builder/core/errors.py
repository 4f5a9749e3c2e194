"""Every exception that builder raises on purpose, with the exit code of each.

    BuilderError            1   any other failure
    ├── UsageError          2   wrong command line
    ├── ConfigError         3   wrong recipe, environment or settings file
    ├── LockError           4   lock file missing or stale
    ├── SolveError          5   no set of packages satisfies the environment
    ├── FetchError          6   a package cannot be downloaded, or its hash does not match the lock
    │   └── HashMismatch    6
    ├── LayerError          7   a package cannot be turned into a layer, or its wheel cannot be built
    │   └── WheelError      7
    ├── ImageError          8   a base image, layout or archive cannot be read or written, or a step failed
    ├── RegistryError       9   a registry cannot be reached or refuses access
    │   └── TagExistsError 12   the tag exists and must not move
    ├── RunnerError        10   no way to run the image was found
    ├── SmokeError         11   the smoke test failed, or the image is slower than an earlier one
    │   └── SmokeNotRun    14   the smoke test could not run, or --ab has no verdict
    ├── SpaceError         13   no space left on the device
    └── VerifyError        15   an image is not signed as the policy requires, or cannot be rebuilt

Anything else that reaches the command line is a bug: exit code 70.
"""

from __future__ import annotations

from collections.abc import Mapping

from .datafiles import table


class BuilderError(Exception):
    """A failure that a user can cause or fix.

    Args:
        message: what happened; names the file, key, package or address.
        hint: what the user can do about it; printed on a separate line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(BuilderError):
    """The command line is wrong. (click ends with 2 as well.)"""

    exit_code = 2


class ConfigError(BuilderError):
    """A recipe, environment or settings file is wrong; the message names file, line and key."""

    exit_code = 3


class LockError(BuilderError):
    """A lock file is missing, unreadable, or stale: its sources have changed."""

    exit_code = 4


class SolveError(BuilderError):
    """No set of packages satisfies the environment; the message holds the solver's reason."""

    exit_code = 5


class FetchError(BuilderError):
    """A package or blob cannot be downloaded: offline, removed, or not what the lock names."""

    exit_code = 6


class HashMismatch(FetchError):
    """The content does not match the hash in the lock; the download was deleted."""


class LayerError(BuilderError):
    """A package cannot be turned into a layer: unsafe paths, a post-link script, a corrupt
    archive.
    """

    exit_code = 7


class WheelError(LayerError):
    """A wheel cannot be built from its source, or the wheel that was built is not usable."""


class ImageError(BuilderError):
    """A base image, layout or archive cannot be read or written, or a build step failed."""

    exit_code = 8


class RegistryError(BuilderError):
    """A registry cannot be reached or refuses access.

    Args:
        message, hint: see :class:`BuilderError`.
        status: the HTTP status of the registry's response; None when there was no response.
        codes: the error codes in the response's body (distribution-spec, error codes), in their
            order.
        host: the registry; empty if no registry is involved (a reference that is not valid).
    """

    exit_code = 9

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int | None = None,
        codes: tuple[str, ...] = (),
        host: str = "",
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.codes = codes
        self.host = host


class RunnerError(BuilderError):
    """No way to run the image was found, or the requested one does not work on this host."""

    exit_code = 10


class SmokeError(BuilderError):
    """The smoke test ran inside the image and failed. No tag moves."""

    exit_code = 11


class SmokeNotRun(SmokeError):
    """The smoke test could not run: no container started, or it wrote no report. No tag moves."""

    exit_code = 14


class TagExistsError(RegistryError):
    """A tag that must not move exists and names another digest."""

    exit_code = 12


class SpaceError(BuilderError):
    """No space is left in the cache, the temporary folder or the output folder."""

    exit_code = 13


class VerifyError(BuilderError):
    """A published image is not what the policy requires. Nothing was pulled, and no job was written."""

    exit_code = 15


def refuse(options: Mapping[str, object], message: str, hint: str) -> None:
    """Raise UsageError for the first option with a value; its name replaces ``{}``."""
    for name, value in options.items():
        if value:
            raise UsageError(message.replace("{}", name), hint.replace("{}", name))


#: Exit codes that belong to no BuilderError.
INTERRUPTED = 130
BUG = 70


def exit_codes() -> dict[int, str]:
    """Return all exit codes with their meaning, in order; docs/cli.md shows them."""
    return dict(table(__file__, "exit_codes.yaml"))
