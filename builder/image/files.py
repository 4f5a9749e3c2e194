"""The files that builder itself puts into an image: entry point, smoke test, lock, and the recipe's ``files:``."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from builder.config.recipe import Files, Recipe
from builder.errors import ConfigError
from builder.image.smoke_program import smoke_program
from builder.layers.entry import Entry, Inline, LinkContext, Range
from builder.redact import redact

HOME = "/opt/builder"
ENTRYPOINT = f"{HOME}/entrypoint"
#: Never copied from a folder of the project: made by tools, different every time.
IGNORED = frozenset({"__pycache__", ".git", ".DS_Store"})
#: Symlinks in Debian, Ubuntu, Fedora, SUSE and their children: a file put below them would replace the link by a folder.
_MERGED = re.compile(r"(bin|sbin|lib|lib32|lib64|libx32|var/run|var/lock)(/|$)")
_SPECIAL_MODES = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
_OPAQUE = ".wh..wh..opq"

_SCRIPT = """\
#!/bin/sh
# Runs a command in the environment at {prefix}; written by builder.
# Works as the image's entry point (docker, podman) and as its runscript (singularity, apptainer); running it twice is harmless.
CONDA_PREFIX={prefix}
CONDA_DEFAULT_ENV=base
CONDA_SHLVL=1
PYTHONNOUSERSITE=1
export CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL PYTHONNOUSERSITE
case "$PATH:" in
    "$CONDA_PREFIX/bin:"*) ;;
    *) PATH="$CONDA_PREFIX/bin${{PATH:+:$PATH}}" ;;
esac
export PATH
[ "$#" -gt 0 ] || set -- {command}
"""

_SOURCE = """\
if [ "${{BUILDER_ACTIVATED:-}}" != "$CONDA_PREFIX" ]; then
    # Activation scripts may be written for bash: it runs them where the image has it. Plain sh leaves out what it cannot parse.
    if [ -z "${{BASH_VERSION:-}}" ] && command -v bash >/dev/null 2>&1; then
        exec bash {entrypoint} "$@"
    fi
    BUILDER_ACTIVATED=$CONDA_PREFIX
    export BUILDER_ACTIVATED
    builder_source() {{
        if [ -r "$1" ] && {{ [ -n "${{BASH_VERSION:-}}" ] || sh -n "$1" 2>/dev/null; }}; then
            . "$1"
        fi
    }}
{keep}    for builder_script in {scripts}; do
        builder_source "$builder_script"
    done
{restore}fi
"""


def entrypoint(recipe: Recipe, context: LinkContext, activation_scripts: Sequence[str]) -> str:
    """The entry point: POSIX sh that sets the environment up, sources the activation scripts once and execs its arguments.

    Args:
        recipe: its ``cmd`` is what runs when no arguments are given (``sh`` when there is none).
        context: the environment's prefix.
        activation_scripts: image paths of the ``activate.d`` scripts whose effect the image's config cannot hold.
    """
    text = _SCRIPT.format(prefix=shlex.quote(context.prefix), command=shlex.join(recipe.cmd or ("sh",)))
    if activation_scripts:
        # The recipe's variables (or what `docker run -e` made of them) win over what a script sets.
        names = [n for n in recipe.env if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", n)]
        text += _SOURCE.format(
            entrypoint=ENTRYPOINT,
            scripts=" ".join(shlex.quote("/" + s.lstrip("/")) for s in activation_scripts),
            keep="".join(f"    builder_keep_{n}=${{{n}-}}\n" for n in names),
            restore="".join(f"    {n}=$builder_keep_{n}\n    export {n}\n" for n in names),
        )
    return text + 'exec "$@"\n'


def system_entries(
    recipe: Recipe, lock_text: bytes, context: LinkContext, activation_scripts: Sequence[str]
) -> list[Entry]:
    """Entry point, smoke test, lock and the recipe's files, as members of one layer.

    Raises:
        ConfigError: a file of the recipe is missing, or would land where it breaks the base.
    """
    home = HOME.lstrip("/")
    entries = [
        Entry(home, "dir", 0o755),
        _inline(
            f"{home}/conda-lock.yml",
            redact(lock_text.decode(errors="surrogateescape")).encode(errors="surrogateescape"),
            0o644,
        ),
        _inline(f"{home}/entrypoint", entrypoint(recipe, context, activation_scripts).encode(), 0o755),
        _inline(f"{home}/smoke.py", smoke_program(), 0o644),
    ]
    for number, item in enumerate(recipe.files):
        entries += _copy(recipe, number, item)
    last = {e.path: e for e in entries}  # a later file takes the place of an earlier one
    return [e for e in entries if last[e.path] is e or e.kind == "dir" == last[e.path].kind]


def whiteout_entries(prefix: str) -> list[Entry]:
    """Hides what the base has at the environment's prefix (image-spec, layer.md); harmless when that is nothing."""
    folder = prefix.strip("/")
    return [Entry(folder, "dir", 0o755), Entry(f"{folder}/{_OPAQUE}", "file", 0o644, 0, content=Inline(b""))]


def _inline(path: str, data: bytes, mode: int) -> Entry:
    return Entry(path, "file", mode, len(data), content=Inline(data))


def _copy(recipe: Recipe, number: int, item: Files) -> list[Entry]:
    where = f"{recipe.source}: files[{number}]"
    source = recipe.root / item.source
    target = _target(item, source, where)
    mode = None
    if item.mode is not None:
        if not re.fullmatch(r"0?o?[0-7]{3,4}", item.mode):
            raise ConfigError(f"{where}: mode {item.mode!r} is not octal", 'write it as "0755"')
        mode = int(item.mode.replace("o", ""), 8)
    try:
        entries = list(_walk(source, target, mode, where))
    except OSError as e:
        missing = isinstance(e, FileNotFoundError)
        raise ConfigError(
            f"{where}: {e.filename} {'does not exist' if missing else f'cannot be read: {e.strerror}'}",
            f"correct 'source'; it is relative to {recipe.root}",
        ) from None
    return [*_special_parents(target), *entries]


def _target(item: Files, source: Path, where: str) -> str:
    parts = PurePosixPath(item.target).parts
    if not item.target.startswith("/") or ".." in parts:
        raise ConfigError(
            f"{where}: target {item.target!r} is not an absolute path in the image",
            "write it from the root: /app/train.py",
        )
    if item.target.endswith("/") and not source.is_dir():
        parts = (*parts, source.name)
    target = "/".join(parts[1:])
    if not target:
        if source.is_dir():
            raise ConfigError(f"{where}: target is the image's root", "copy into a folder of its own: /app")
        target = source.name
    if hit := _MERGED.match(target):
        better = "run" if hit[1].startswith("var/") else f"usr/{hit[1]}"
        raise ConfigError(f"{where}: /{hit[1]} is a symlink in most bases", f"use a target in /{better}")
    if any(part.startswith(".wh.") for part in parts):
        raise ConfigError(f"{where}: a name that starts with .wh. deletes files of other layers", "rename it")
    return target


def _special_parents(target: str) -> Iterator[Entry]:
    """Parents that are not 0755 root, so that a file below them does not change them."""
    for parent in reversed(PurePosixPath(target).parents):
        if (mode := _SPECIAL_MODES.get(str(parent))) is not None:
            yield Entry(str(parent), "dir", mode)


def _walk(source: Path, target: str, mode: int | None, where: str) -> Iterator[Entry]:
    info = source.lstat()
    if stat.S_ISLNK(info.st_mode):
        yield Entry(target, "symlink", 0o777, target=str(source.readlink()))
    elif stat.S_ISDIR(info.st_mode):
        yield Entry(target, "dir", 0o755)
        for child in sorted((p.name for p in source.iterdir()), key=os.fsencode):
            if child.startswith(".wh."):
                raise ConfigError(
                    f"{where}: {source / child} would delete files of other layers", "rename it"
                )
            if child not in IGNORED:
                yield from _walk(source / child, f"{target}/{child}", mode, where)
    elif stat.S_ISREG(info.st_mode):
        if not os.access(source, os.R_OK):
            raise PermissionError(13, "permission denied", str(source))
        default = 0o755 if info.st_mode & 0o100 else 0o644
        yield Entry(
            target, "file", default if mode is None else mode, info.st_size, content=Range(source.absolute())
        )
    else:
        raise ConfigError(f"{where}: {source} is neither file, folder nor symlink", "leave it out")
