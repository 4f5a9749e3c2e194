"""Types of recipe values with validators: shell texts, times, binds, options, sizes, variables."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from builder.core.datafiles import table
from builder.core.text import CONTROL

#: A variable in a shell text, or an escaped dollar sign.
VARIABLE = re.compile(
    r"(?a)\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\}|(?P<dollar>\$))"
)
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
#: Slurm's formats. Without a day part, one number is minutes, two are minutes:seconds, three are
#: hours:minutes:seconds.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")
_OPTION_PLACEHOLDERS = ("gpus", "total", "nodes")


class Model(BaseModel):
    """Base of all recipe models: unknown keys are errors, and values cannot change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def empty() -> Any:
    """Return the default of a field that is a model: the model without keys.

    A model as default would be made, and its validator built, when the class is defined.
    """
    return Field({}, validate_default=True)


def line(value: str) -> str:
    """Validate a text of one line, without control characters.

    Raises:
        ValueError: the text contains a control character, such as a newline.
    """
    found = CONTROL.search(value)
    if found is not None:
        names = {"\n": "a newline", "\t": "a tab"}
        name = names.get(found[0], f"U+{ord(found[0]):04X}")
        raise ValueError(f"must be one line without control characters, and contains {name}")
    return value


def matching(kind: str) -> AfterValidator:
    """Return the validator of one kind of texts in fields.yaml."""

    def check(value: str) -> str:
        rule = table(__file__, "fields.yaml")[kind]
        if not re.fullmatch(rule["pattern"], value):
            plain = re.sub(r"nvidia|geforce|amd|instinct|radeon|compute|[\W_]", "", value.lower())
            others = rule.get("meant", {}).items()
            meant = next((text for begin, text in others if plain.startswith(begin)), "")
            problem = rule["problem"].replace("VALUE", value).replace("MEANT", meant)
            raise ValueError(f"{value!r} {problem}")
        return value

    return AfterValidator(check)


def parsed(parse: Callable[[str], object], problem: str) -> AfterValidator:
    """Return the validator of texts that a function accepts.

    Args:
        parse: raises ValueError or :class:`re.error` for other texts.
        problem: follows the text in the message; ``REASON`` in it is the first line of the error.
    """

    def check(value: str) -> str:
        try:
            parse(value)
        except (ValueError, re.error) as e:
            reason = str(e).splitlines()[0]
            raise ValueError(f"{value!r} {problem.replace('REASON', reason)}") from None
        return value

    return AfterValidator(check)


def shell_text(value: str) -> str:
    """Validate a shell text: each dollar sign starts a variable name, or is written ``$$``.

    Raises:
        ValueError: the text contains another ``$`` construct, or more than one line.
    """
    if "$" in VARIABLE.sub("", value):
        raise ValueError(
            f"{value!r}: write a variable as $NAME or ${{NAME}}, a dollar sign as $$; "
            "commands are not allowed"
        )
    if "\n" in value or "\0" in value:
        raise ValueError(f"{value!r}: must be one line")
    return value


def seconds(value: str) -> int:
    """Return the seconds of a Slurm time: ``MINUTES``, ``M:S``, ``H:M:S``, ``D-H[:M[:S]]``.

    Raises:
        ValueError: the text has another format, or the time is zero.
    """
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not a time: write HH:MM:SS, or D-HH:MM as Slurm does")
    first, second, third = (int(found[part] or 0) for part in ("first", "second", "third"))
    if found["days"] is None and found["third"] is None:
        first, second, third = 0, first, second
    total = int(found["days"] or 0) * 86400 + first * 3600 + second * 60 + third
    if total <= 0:
        raise ValueError(f"{value!r} is zero: write HH:MM:SS")
    return total


def _time(value: str) -> str:
    if value:
        seconds(value)
    return value


def _bind(value: str) -> str:
    source, _, rest = shell_text(value).partition(":")
    target, _, mode = rest.partition(":")
    paths = (source, target) if rest else (source,)
    for path in paths:
        if not path.startswith(("/", "$")) or "," in path:
            raise ValueError(
                f"{value!r}: write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, with absolute paths"
            )
    if mode not in ("", "ro", "rw"):
        raise ValueError(f"{value!r}: {mode!r} is neither ro nor rw")
    return value


def _option(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError(f"{value!r}: write options as --name=value")
    for name in _PLACEHOLDER.findall(value):
        if name not in _OPTION_PLACEHOLDERS:
            raise ValueError(f"{value!r}: {{{name}}} is not one of {{gpus}}, {{total}}, {{nodes}}")
    return line(value)


def _images(value: str) -> str:
    for name in _PLACEHOLDER.findall(VARIABLE.sub("", value)):
        if name != "account":
            raise ValueError(f"{value!r}: {{{name}}} is not {{account}}")
    return shell_text(value)


#: One line without control characters.
Line = Annotated[str, AfterValidator(line)]
#: The name of a target: it becomes a part of file names, Dockerfiles and definition files.
TargetName = Annotated[str, matching("target")]
#: May contain variables of the job's shell; ``$$`` is a dollar sign.
ShellTextField = Annotated[str, AfterValidator(shell_text)]
#: ``SOURCE``, ``SOURCE:TARGET`` or ``SOURCE:TARGET:MODE`` with absolute paths; a shell text.
Bind = Annotated[str, AfterValidator(_bind)]
#: A time as Slurm writes it, or empty.
Time = Annotated[str, AfterValidator(_time)]
#: An option of a Slurm command; may contain ``{gpus}``, ``{total}`` and ``{nodes}``.
Option = Annotated[str, AfterValidator(_option)]
#: The name of an environment variable.
Variable = Annotated[str, matching("variable")]
_VirtualPackage = Annotated[Line, matching("virtual_package")]
_VirtualVersion = Annotated[Line, matching("virtual_version")]
#: Names of virtual packages (``__glibc``), each with its version, or ``VERSION=BUILD``.
VirtualPackages = dict[_VirtualPackage, _VirtualVersion]
#: The name of a module of Python.
Module = Annotated[Line, matching("module")]
#: A number with a unit, such as ``12g``, or empty.
Size = Annotated[str, matching("size")]
#: The site's folder of images: a shell text that may contain ``{account}``.
ImageFolder = Annotated[str, AfterValidator(_images)]
#: An ISO 8601 date or time. YAML turns an unquoted date into an object, which becomes text again.
Date = Annotated[
    str, BeforeValidator(lambda day: day.isoformat() if isinstance(day, date) else day)
]
#: A day, ``YYYY-MM-DD``, in quotes or without.
Day = Annotated[Date, parsed(date.fromisoformat, "is not a date: write YYYY-MM-DD")]
#: A host name made of another one, ``{host}``; or empty.
HostPattern = Annotated[str, matching("host_pattern")]
Variables = dict[Variable, ShellTextField]
