"""The one family of exceptions that builder raises on purpose.

Every error says what happened, what to do about it, and which exit code the command line ends with.
Anything else that reaches the command line is a bug.
"""

from __future__ import annotations


class BuilderError(Exception):
    """Something that a user can cause or hint.

    Args:
        message: what happened, naming the file, key, package or address concerned.
        hint: what the user can do about it; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(BuilderError):
    """A command line that cannot be followed (click's own exit code is 2 too)."""

    exit_code = 2


class ConfigError(BuilderError):
    """A recipe, environment or settings file that is wrong: file, line and key are in the message."""

    exit_code = 3


class LockError(BuilderError):
    """A lock file that is missing, unreadable, or not that of its sources any more."""

    exit_code = 4


class SolveError(BuilderError):
    """No set of packages satisfies the environment; the message holds the solver's reason."""

    exit_code = 5


class FetchError(BuilderError):
    """A package or blob could not be had: offline, gone, or not what the lock says."""

    exit_code = 6


class HashMismatch(FetchError):
    """What came is not what was locked; it was deleted."""


class LayerError(BuilderError):
    """A package cannot be laid out: unsafe paths, a post-link script, a damaged archive."""

    exit_code = 7


class ImageError(BuilderError):
    """A base image, layout or archive that cannot be used or written."""

    exit_code = 8


class RegistryError(BuilderError):
    """A registry cannot be reached or refuses a request.

    Args:
        message, hint: see :class:`BuilderError`.
        status: the HTTP status of the registry's response; None when there was no response.
        codes: the error codes in the response's body (distribution-spec, error codes), in their order.
        host: the registry; empty when the error is about no registry (a reference that is not valid).
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
    """No way of running the image was found, or the one asked for does not work here."""

    exit_code = 10


class SmokeError(BuilderError):
    """The smoke test ran inside the image and did not pass. No tag moves."""

    exit_code = 11


class TagExistsError(RegistryError):
    """A tag that must not move points at another digest already."""

    exit_code = 12


class SpaceError(BuilderError):
    """Not enough room in the cache, the temporary folder or the output folder."""

    exit_code = 13
