"""The smoke test of a recipe: what is tested inside its image before a tag moves."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from .fields import Line, Model, Module

Framework = Literal["torch", "tensorflow", "jax"]

#: The short forms of the key: ``smoke: jax``.
_FRAMEWORKS: tuple[str, ...] = get_args(Framework)
_SHORT = ("auto", *_FRAMEWORKS)
_REASON = 'a reason is required; write  smoke: {none: "why the image is not tested"}'


class SmokeTest(Model):
    """What the smoke test does. Keys can be combined; without any, the lock decides.

    ``smoke: torch`` (``tensorflow``, ``jax``) is short for ``smoke: {framework: torch}``, and
    ``smoke: auto`` for no key at all.
    """

    framework: Framework | None = None
    """Test and time this framework on the recipe's GPUs or on the CPU."""
    imports: tuple[Module, ...] = ()
    """Modules to import."""
    command: tuple[Line, ...] = ()
    """A program to run in the image, as a list of words. Its exit code decides."""
    timeout: Annotated[int, Field(ge=1, le=86400)] = 120
    """Seconds after which ``command`` is stopped and counts as failed."""
    none: Line | None = None
    """Do not test the image, for this reason. It is published with the image."""

    @property
    def is_auto(self) -> bool:
        """Whether the lock decides what is tested."""
        return not (self.framework or self.imports or self.command or self.none)

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        if value is None or value == "auto":
            return {}
        if value in (False, "none", {"none": None}):
            raise ValueError(_REASON)
        if value in _FRAMEWORKS:
            return {"framework": value}
        if isinstance(value, dict | SmokeTest):
            return value
        raise ValueError(f"must be {', '.join(_SHORT)} or a mapping such as {{imports: [sklearn]}}")

    @field_validator("none")
    @classmethod
    def _has_reason(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError(_REASON)
        return value

    @model_validator(mode="after")
    def _none_stands_alone(self) -> Self:
        if self.none and (self.framework or self.imports or self.command):
            raise ValueError("'none' excludes all other tests: leave out one of them")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the mapping or a short form: editors must accept both."""
        return {"anyOf": [{"enum": list(_SHORT)}, handler(core_schema)]}
