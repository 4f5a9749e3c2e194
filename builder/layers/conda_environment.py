"""What conda packages make together: the order they are linked in, the Python they share, the history, and activation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from builder.errors import LayerError
from builder.layers.conda_archive import PathInfo, damage, fault, is_safe, package_files, read_info
from builder.layers.conda_prefix import replaced
from builder.layers.entry import Entry, Inline, LinkContext
from builder.model import Fetched, LockedPackage
from builder.redact import redact

_ACTIVATE = "etc/conda/activate.d/"
_ENV_VARS = "etc/conda/env_vars.d/"
_UNSET = "***unset***"  # conda's mark for a variable that an environment takes away


def link_order(packages: Sequence[LockedPackage]) -> list[LockedPackage]:
    """The order in which packages are linked; of two that bring the same file, the later one wins.

    Dependencies come first, and where they leave a choice the order is rattler's (``PackageRecord.sort_topologically``), so that
    the same package wins as in ``rattler.install``. It depends on names and dependencies alone, not on the order given. A
    cycle is cut so that its noarch packages come last.

    Raises:
        LayerError: a name stands twice.
    """
    by_name: dict[str, LockedPackage] = {}
    for p in packages:
        if p.name in by_name:
            raise LayerError(
                f"the lock has {p.name} twice: {by_name[p.name].filename} and {p.filename}", "lock again"
            )
        by_name[p.name] = p
    needs = {name: sorted({d.lower() for d in p.dependencies}) for name, p in by_name.items()}
    for a, b in _cuts(needs, by_name):
        needs[a] = [n for n in needs[a] if n != b]
    order: list[LockedPackage] = []
    visited: set[str] = set()
    roots = sorted(by_name.keys() - {d for n in needs.values() for d in n})
    while roots:
        stack = [(name, False) for name in roots]
        while stack:
            name, complete = stack.pop()
            if complete:
                order.append(by_name[name])
            elif name not in visited:
                visited.add(name)
                stack.append((name, True))
                stack += [(d, False) for d in needs[name] if d in by_name]
        roots = sorted(by_name.keys() - visited)
    return order


def _cuts(needs: Mapping[str, Sequence[str]], by_name: Mapping[str, LockedPackage]) -> list[tuple[str, str]]:
    """The dependencies (who, on whom) to leave out so that no cycle stays, as rattler chooses them."""
    cuts = []
    for cycle in _cycles(needs):
        for i, a in enumerate(cycle):
            b = cycle[(i + 1) % len(cycle)]
            first, second = (by_name[n].subdir != "noarch" for n in (a, b))
            if first and not second:
                cuts.append((a, b))
                break
            if (not first and second) or i == len(cycle) - 1:
                cuts.append((b, a))
                break
    return cuts


def _cycles(needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    found = []
    visited: set[str] = set()
    for start in sorted(needs):
        if start in visited:
            continue
        visited.add(start)
        path, place, todo = [start], {start: 0}, [iter(needs[start])]
        while todo:
            name = next(todo[-1], None)
            if name is None:
                todo.pop()
                del place[path.pop()]
            elif name in place:
                found.append(path[place[name] :])
            elif name in needs and name not in visited:
                visited.add(name)
                place[name] = len(path)
                path.append(name)
                todo.append(iter(needs[name]))
    return found


def python_context(
    packages: Sequence[LockedPackage],
    fetched: Sequence[Fetched],
    prefix: str,
    platform: str,
    requested: frozenset[str],
) -> LinkContext:
    """What linking depends on: the locked conda Python and its site-packages.

    Those are what the python package states (CEP 17), else ``lib/pythonX.Y/site-packages``, with ``t`` for a free-threaded build.

    Raises:
        LayerError: the python package is damaged, or is locked but was not fetched.
    """
    locked = next((p for p in packages if p.manager == "conda" and p.name == "python"), None)
    if locked is None:
        return LinkContext(prefix, "", "", platform, requested)
    python = next((f for f in fetched if f.package == locked), None)
    if python is None:
        raise LayerError(f"{locked.filename} was not fetched", "this is a fault of builder: report it")
    match = re.match(r"(\d+)\.(\d+)", locked.version)
    if match is None:
        raise LayerError(
            f"{locked.filename}: no Python version looks like {locked.version!r}", "lock another python"
        )
    version = match.group(0)
    stated = read_info(python).index.get("python_site_packages_path")
    if stated and not (isinstance(stated, str) and is_safe(stated)):
        raise fault(python, f"unsafe python_site_packages_path {stated!r}")
    threads = "t" if re.search(rf"_cp{match.group(1)}{match.group(2)}t$", locked.build) else ""
    return LinkContext(
        prefix, version, stated or f"lib/python{version}{threads}/site-packages", platform, requested
    )


def recorded_url(url: str) -> str:
    """A package's URL as conda records it in ``conda-meta``: without credentials, and without ``/t/<token>``."""
    parts = urlsplit(redact(url))
    path = re.sub(r"^/t/[^/]+/", "/", parts.path)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))


def history_entry(packages: Iterable[LockedPackage], context: LinkContext) -> Entry:
    """``conda-meta/history``, without which conda does not take the prefix for an environment. Its time is zip's first day."""
    lines = ["==> 1980-01-01 00:00:00 <==", "# cmd: builder build"]
    for p in sorted(packages, key=lambda p: p.name):
        channel = recorded_url(p.url).rpartition("/")[0].removeprefix("https://conda.anaconda.org/")
        lines.append(f"+{channel}::{p.filename.removesuffix('.conda').removesuffix('.tar.bz2')}")
    if context.requested:
        lines.append(f"# update specs: {json.dumps(sorted(context.requested))}")
    data = ("\n".join(lines) + "\n").encode()
    return Entry(
        f"{context.prefix.strip('/')}/conda-meta/history", "file", 0o644, len(data), content=Inline(data)
    )


# activation -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Activation:
    """What activating the environment does.

    ``env``: variables that it sets whatever happens, for the image's config. ``scripts``: image paths (with a leading slash) of
    the activation scripts that do more than that, in the order in which they are sourced.
    """

    env: Mapping[str, str]
    scripts: tuple[str, ...]


def is_activation(path: str) -> bool:
    """Whether a path below the prefix is run or read when the environment is activated."""
    return (path.startswith(_ACTIVATE) and path.endswith(".sh")) or (
        path.startswith(_ENV_VARS) and path.endswith(".json")
    )


def activation_environment(fetched: Sequence[Fetched], context: LinkContext) -> Activation:
    """The effect of ``etc/conda/env_vars.d/*.json`` and ``etc/conda/activate.d/*.sh``, in conda's order: by file name.

    Of the scripts only plain ``export NAME=VALUE`` lines outside any block are taken, with ``$CONDA_PREFIX`` put in. A script
    that holds anything else is listed, for the entry point to source.

    Args:
        fetched: conda packages in link order: of two that bring the same script, the later one wins.

    Raises:
        LayerError: a package is damaged, or a JSON file is not a mapping of names to values.
    """
    found: dict[str, tuple[Fetched, str]] = {}
    for f in fetched:
        infos = {p.path: p for p in read_info(f).paths if is_activation(p.path)}
        for path, data in package_files(f, infos.keys()).items():
            with damage(f):
                found[path] = f, _text(data, infos[path], context.prefix)
    env: dict[str, str] = {}
    for path in sorted(p for p in found if p.startswith(_ENV_VARS)):
        f, text = found[path]
        with damage(f):
            for name, value in json.loads(text).items():
                if not re.fullmatch(r"[A-Za-z_]\w*", name) or not isinstance(value, str | int | float):
                    raise fault(f, f"{path}: {name!r} is not a variable with a value")
                if value != _UNSET:
                    env[name] = str(value)
    dynamic: list[str] = []
    for path in sorted(p for p in found if p.startswith(_ACTIVATE)):
        exports, plain = _static_exports(found[path][1], context.prefix)
        # What a dynamic script sets is not for a plain one to take back in the image's config only.
        if not plain or any(re.search(rf"\b{name}\b", found[d][1]) for d in dynamic for name in exports):
            dynamic.append(path)
        env |= exports
    return Activation(dict(sorted(env.items())), tuple(f"{context.prefix}/{p}" for p in dynamic))


def _text(data: bytes, info: PathInfo, prefix: str) -> str:
    if info.placeholder:
        data = b"".join(replaced([data], info.placeholder, prefix, binary=info.binary))
    return data.decode(errors="replace")


_BARE = r"""(?:[^\s"'`\\;&|<>()*?\[\]{}~#]|\$\{CONDA_PREFIX\})*"""
_EXPORT = re.compile(rf"""export\s+([A-Za-z_]\w*)=(?:"([^"`\\]*)"|'([^']*)'|({_BARE}))\s*;?\s*(?:#.*)?""")
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""")
_BEFORE_COMMAND = frozenset({"", ";", "&", "|", "then", "do", "else", "elif", "if", "while", "until", "!"})
#: What follows one of these may not be reached, or may not be commands at all: nothing more is taken from the script.
_OBSCURE = re.compile(r"[(){}`'\"\\]|<<|\b(case|select|function|return|exit|exec|set|eval|trap)\b")


def _static_exports(text: str, prefix: str) -> tuple[dict[str, str], bool]:
    """The exports that a script makes in any case, and whether it does nothing else."""
    out: dict[str, str] = {}
    depth = 0
    plain = True
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = None if depth else _EXPORT.fullmatch(line)
        value = _value(match, prefix) if match else None
        if match and value is not None:
            out[match.group(1)] = value
            continue
        plain = False
        bare = re.sub(r"(^|\s)#.*", "", _QUOTED.sub("_", line))
        depth += _nesting(bare)
        for name in [n for n in out if re.search(rf"\bunset\b.*\b{n}\b|\b{n}\+?=", line)]:
            del out[name]  # it may have another value in the end
        if depth < 0 or _OBSCURE.search(re.sub(r"\$\{\w+\}", "_", bare)):
            later = text[text.index(raw) + len(raw) :]
            return {n: v for n, v in out.items() if not re.search(rf"\b{n}\b", later)}, False
    return out, plain


def _nesting(line: str) -> int:
    """How many blocks a line (without strings and comments) opens, less those that it closes."""
    depth = 0
    before = ""
    for word in re.findall(r"[^\s;&|]+|[;&|]", line):
        if before in _BEFORE_COMMAND:
            depth += (word in ("if", "for", "while", "until")) - (word in ("fi", "done"))
        before = word
    return depth


def _value(match: re.Match[str], prefix: str) -> str | None:
    """An export's value, None when it depends on more than the prefix."""
    _, double, single, bare = match.groups()
    if single is not None:
        return str(single)
    value = re.sub(
        r"\$CONDA_PREFIX\b|\$\{CONDA_PREFIX\}", lambda m: prefix, double if double is not None else bare
    )
    return None if "$" in value else value
