"""What a project requires, read from the files of uv, pixi and PEP 621: ``pyproject.toml``, ``uv.lock``,
``pylock.toml``, ``pixi.toml``.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder.errors import ConfigError
from builder.start.requirements import Requirements

_PYPI = "https://pypi.org/simple"
#: Bytes of a TOML file. The uv.lock of 300 packages has 1 MB.
MAX_BYTES = 16 << 20
#: Seconds that ``uv export`` may take.
_TIME_LIMIT_S = 60


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML; the message names the line.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(
                f"{path}: the file has more than {MAX_BYTES} bytes", "name another: --from FILE"
            )
        return tomllib.loads(raw.decode())
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}", "it must be a UTF-8 text file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as e:  # tomllib's parser of arrays is recursive
        raise ConfigError(f"{path}: not valid TOML: {e}", "correct the file") from None


def read_pyproject(path: Path, groups: Sequence[str] = ()) -> Requirements:
    """Reads ``[project]`` of a ``pyproject.toml``.

    Args:
        path: the file.
        groups: extras (``[project.optional-dependencies]``) and dependency groups to add.

    Raises:
        ConfigError: the file is not valid, or has no such group.
    """
    data = read_toml(path)
    project = _table(data.get("project"))
    found = Requirements(path, python=str(project.get("requires-python", "")))
    extras = _table(project.get("optional-dependencies"))
    dependency_groups = _table(data.get("dependency-groups"))
    specs = _strings(project.get("dependencies"))
    for group in groups:
        if group not in {**extras, **dependency_groups}:
            known = ", ".join([*extras, *dependency_groups]) or "none"
            raise ConfigError(f"{path}: no extra and no dependency group {group!r}", f"it has: {known}")
        specs += _strings(extras.get(group)) + _group(dependency_groups, group, set())
    uv = _table(_table(data.get("tool")).get("uv"))
    sources: dict[str, Any] = {
        canonicalize_name(str(name)): value for name, value in _table(uv.get("sources")).items()
    }
    for text in specs:
        _add(found, text, sources)
    _add_indexes(found, [_table(index).get("url", "") for index in _list(uv.get("index"))])
    if not groups and (unused := [*extras, *dependency_groups]):
        found.notes.append(f"{path.name}: not taken: {', '.join(unused)} (--with NAME takes a group)")
    return found


def _add(found: Requirements, text: str, sources: Mapping[str, Any]) -> None:
    """Adds a requirement, unless ``[tool.uv.sources]`` takes it from a folder or from git."""
    name = canonicalize_name(text.split(";")[0].split("[")[0].strip().split(" ")[0])
    table = _table(sources.get(name))
    marker = text.partition(";")[2].strip()
    extras = re.match(r"[^;\[]*(\[[^\]]*\])", text)
    if not _add_from(found, name, extras[1] if extras else "", marker, table):
        found.add_pip(text)


def _add_from(found: Requirements, name: str, extras: str, marker: str, table: Mapping[str, Any]) -> bool:
    """Adds a package that uv or pixi takes from a repository, a URL or a folder. False: from none of them."""
    kind = next((key for key in ("git", "url", "path", "workspace") if table.get(key)), "")
    if not kind:
        return False
    after = f" ; {marker}" if marker else ""
    folder = str(table.get("subdirectory") or "")
    fragment = f"#subdirectory={folder}" if folder else ""
    if kind == "git":
        revision = next((str(table[key]) for key in ("rev", "tag", "branch") if table.get(key)), "")
        url = str(table["git"]).removeprefix("git+")
        found.add_pip(f"{name}{extras} @ git+{url}{f'@{revision}' if revision else ''}{fragment}{after}")
    elif kind == "url":
        found.add_pip(f"{name}{extras} @ {table['url']}{fragment}{after}")
    elif kind == "path":
        path = str(table["path"])
        is_plain = not path.startswith((".", "/", "~"))
        found.add_source(
            f"{'./' if is_plain else ''}{path}{extras}{after}", editable=bool(table.get("editable"))
        )
    else:
        found.left_out.append((name, "a member of the workspace: write -e ./FOLDER"))
    return True


def _group(groups: Mapping[str, Any], name: str, seen: set[str]) -> list[str]:
    """The requirements of a dependency group, with the groups that it includes (PEP 735), each once."""
    if name in seen:
        return []
    seen.add(name)
    texts: list[str] = []
    for item in _list(groups.get(name)):
        if isinstance(item, str):
            texts.append(item)
        elif include := _table(item).get("include-group"):
            texts += _group(groups, str(include), seen)
    return texts


def read_uv_lock(path: Path) -> Requirements:
    """The pinned versions of a ``uv.lock``, with their markers, by ``uv export``.

    Raises:
        ConfigError: uv cannot read the file, or its ``pyproject.toml``.
    """
    data = read_toml(path)
    found = Requirements(path, python=str(data.get("requires-python", "")))
    for line in _uv_export(path).splitlines():
        if line and not line.startswith(("#", " ")):
            found.add_pip(line)
    sources = [_table(_table(package).get("source")) for package in _list(data.get("package"))]
    _add_indexes(found, [source.get("registry", "") for source in sources])
    return found


def _uv_export(path: Path) -> str:
    """The requirements of a ``uv.lock`` as uv writes them. Raises ConfigError if uv fails."""
    import uv

    options = ["--frozen", "--no-dev", "--no-hashes", "--no-emit-project", "--no-header", "--no-annotate"]
    command = [uv.find_uv_bin(), "export", *options, "--format", "requirements.txt", "--offline", "--quiet"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    try:
        done = subprocess.run(
            command,
            cwd=path.parent,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
        reason = " ".join(done.stderr.split())
    except subprocess.TimeoutExpired:
        done, reason = None, f"no result within {_TIME_LIMIT_S} s"
    if done is None or done.returncode:
        raise ConfigError(
            f"{path}: uv export fails: {reason}",
            "builder init --from pyproject.toml reads the ranges instead",
        )
    return done.stdout


def read_pylock(path: Path) -> Requirements:
    """The pinned versions of a ``pylock.toml`` (PEP 751), with their markers.

    Raises:
        ConfigError: the file is not valid.
    """
    data = read_toml(path)
    found = Requirements(path, python=str(data.get("requires-python", "")))
    indexes = []
    for package in map(_table, _list(data.get("packages"))):
        name, version = str(package.get("name", "")), package.get("version")
        marker = str(package.get("marker", ""))
        if "dependency_groups" in marker or "extras" in marker:
            found.left_out.append((name, f"belongs to a group: {marker}"))
        elif not version or not (package.get("wheels") or package.get("sdist")):
            found.left_out.append(
                (name, "comes from a folder, an archive or git: name it in the environment file")
            )
        else:
            found.add_pip(f"{name}=={version}" + (f" ; {marker}" if marker else ""))
            indexes.append(package.get("index", ""))
    _add_indexes(found, indexes)
    return found


def read_pixi(path: Path) -> Requirements:
    """Reads the default environment of a ``pixi.toml``, or of ``[tool.pixi]`` in a ``pyproject.toml``.

    Raises:
        ConfigError: the file is not valid.
    """
    data = read_toml(path)
    project = _table(data.get("project"))
    is_pyproject = path.name == "pyproject.toml"
    pixi = _table(_table(data.get("tool")).get("pixi")) if is_pyproject else data
    found = Requirements(path, python=str(project.get("requires-python", "")) if is_pyproject else "")
    workspace = _table(pixi.get("workspace") or pixi.get("project"))
    for channel in _list(workspace.get("channels")):
        found.channels.append(str(_table(channel).get("channel", "")) or str(channel))
    linux = [_table(_table(pixi.get("target")).get(name)) for name in ("unix", "linux", "linux-64")]
    for table in (pixi, *linux):
        for name, value in _table(table.get("dependencies")).items():
            found.conda.append(_conda_spec(str(name), value))
        for name, value in _table(table.get("pypi-dependencies")).items():
            _add_pypi(found, str(name), value)
    for text in _strings(project.get("dependencies")) if is_pyproject else []:
        found.add_pip(text)
    for key, advice in (("feature", "only the default environment is taken"), ("system-requirements", "")):
        if pixi.get(key):
            found.notes.append(f"{path.name}: [{key}] is not taken{': ' + advice if advice else ''}")
    return found


def has_pixi(path: Path) -> bool:
    """Whether a ``pyproject.toml`` has ``[tool.pixi]``."""
    return bool(_table(read_toml(path).get("tool")).get("pixi"))


def has_project(path: Path) -> bool:
    """Whether a ``pyproject.toml`` describes a project, and not only tools."""
    return bool(read_toml(path).get("project"))


def _conda_spec(name: str, value: Any) -> str:
    """A conda spec from pixi's ``"VERSION"`` or ``{version = ..., build = ..., channel = ...}``."""
    table = value if isinstance(value, dict) else {"version": value}
    version, build = (str(table.get(key, "*")) for key in ("version", "build"))
    channel = f"{table['channel']}::" if table.get("channel") else ""
    words = [channel + name, *([] if version == build == "*" else [version.replace(" ", "")])]
    return " ".join(words if build == "*" else [*words, build])


def _add_pypi(found: Requirements, name: str, value: Any) -> None:
    table = value if isinstance(value, dict) else {"version": value}
    extras = ",".join(_strings(table.get("extras")))
    if _add_from(found, name, f"[{extras}]" if extras else "", "", table):
        return
    version = str(table.get("version", "*"))
    found.add_pip(name + (f"[{extras}]" if extras else "") + ("" if version == "*" else version))
    _add_indexes(found, [table.get("index", "")])


def _add_indexes(found: Requirements, urls: Sequence[Any]) -> None:
    """Adds the package indexes other than PyPI; empty URLs are ignored."""
    for url in urls:
        text = str(url).rstrip("/")
        if text and text != _PYPI:
            found.add_option(f"--extra-index-url {text}")


# values of a foreign file, which may have any type; what has the wrong one is ignored -----------------------


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    return [item for item in _list(value) if isinstance(item, str)]
