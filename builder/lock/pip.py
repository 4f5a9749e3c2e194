"""The pip part of a lock: solved by uv for the locked Python and the target's platform, wheels only, hashes for all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.config.recipe import Recipe
from builder.errors import FetchError, SolveError
from builder.fetch import FIND_LINKS
from builder.fetch.findlinks import PipConfiguration, pip_configuration
from builder.fetch.http import shown, tls_context
from builder.lock.conda import virtual_packages
from builder.lock.environment import Environment, PipOptions
from builder.model import LockedPackage
from builder.progress import Reporter
from builder.settings import Settings

#: manylinux versions that ``uv --python-platform`` knows.
_UV_GLIBC = (17, 28, *range(31, 41))
_MACHINE = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
_PROBE_SECONDS = 8.0
#: conda names that are other distributions on PyPI; every other conda package that needs python is taken to have one name.
CONDA_TO_PYPI = {
    "pytorch": "torch",
    "pytorch-gpu": "torch",
    "pytorch-cpu": "torch",
    "matplotlib-base": "matplotlib",
    "tensorflow-base": "tensorflow",
    "pyarrow-core": "pyarrow",
    "py-opencv": "opencv-python",
    "dask-core": "dask",
    "jupyterlab_server": "jupyterlab-server",
    "pyqt": "pyqt5",
    "ray-core": "ray",
    "seaborn-base": "seaborn",
    "importlib_metadata": "importlib-metadata",
    "python-tzdata": "tzdata",
    "python-flatbuffers": "flatbuffers",
    "protobuf-python": "protobuf",
    "msgpack-python": "msgpack",
    "pytables": "tables",
}


def solve_pip(
    recipe: Recipe,
    environment: Environment,
    conda: Sequence[LockedPackage],
    settings: Settings,
    *,
    previous: Sequence[LockedPackage] = (),
    exclude_newer: str | None,
    reporter: Reporter,
) -> list[LockedPackage]:
    """The pip packages of an environment beside its conda packages.

    What conda provides is part of the resolution at conda's version, and is not installed a second time.

    Raises:
        SolveError: unsatisfiable, or only as source; uv's reason is in the message.
        FetchError: an index does not answer, and the recipe names no fallback.
    """
    if not environment.pip:
        return []
    python = next((p for p in conda if p.name == "python"), None)
    if python is None:
        raise SolveError(
            f"{recipe.environment_path}: pip packages, but no python among the conda packages", "add python=3.11 (or another) to the dependencies"
        )
    provided = conda_provided(conda)
    glibc = int(virtual_packages(recipe).get("__glibc", "2.17").split(".")[1])
    with tempfile.TemporaryDirectory(prefix="builder-pip-", dir=_folder(settings.tmpdir)) as work:
        folder = Path(work)
        lines = [*environment.pip, *(f"{name} @ {_stub(folder, name, version).as_uri()}" for name, version in provided.items())]
        command = [
            _uv(), "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--no-config", "--no-python-downloads",
            "--format", "pylock.toml", "--output-file", str(folder / "pylock.toml"),
            "--python", sys.executable, "--python-version", python.version,
            "--python-platform", f"{_MACHINE[recipe.platform]}-manylinux_2_{max(g for g in _UV_GLIBC if g <= max(glibc, 17))}",
            "--only-binary", ":all:", "--index-strategy", "unsafe-best-match", "--cache-dir", str(settings.cache / "uv"),
        ]  # fmt: skip
        environ, options = _indexes(recipe, environment.pip_options, pip_configuration(), settings, reporter)
        command += options
        if exclude_newer:
            command += ["--exclude-newer", exclude_newer]
            command += [w for name in _dateless(recipe, environment) for w in ("--exclude-newer-package", f"{name}=false")]
        if previous:
            (folder / "pylock.toml").write_text(_preferences(previous))
        done = subprocess.run(
            command, input="\n".join(lines) + "\n", capture_output=True, text=True, env={**os.environ, **environ}, cwd=folder, check=False
        )
        if done.returncode:
            raise _refusal(recipe, done.stderr, provided)
        data = tomllib.loads((folder / "pylock.toml").read_text())
    tags = supported_tags(python.version, recipe.platform, glibc)
    packages = []
    for item in data.get("packages", []):
        name = canonicalize_name(item["name"])
        if name not in provided:
            packages.append(_locked(recipe, item, name, tags))
    return sorted(packages, key=lambda p: p.name)


def conda_provided(conda: Sequence[LockedPackage]) -> dict[str, str]:
    """Distributions that conda packages bring, PyPI's name to version."""
    out: dict[str, str] = {}
    for p in conda:
        needs_python = "python" in p.dependencies or "python_abi" in p.dependencies
        if p.name in CONDA_TO_PYPI or (needs_python and p.name not in ("python", "python_abi")):
            version = re.match(r"[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*", p.version)
            if version:
                out[canonicalize_name(CONDA_TO_PYPI.get(p.name, p.name))] = version.group(0)
    return out


def _stub(folder: Path, name: str, version: str) -> Path:
    """A wheel that holds a name and a version and nothing else: what uv sees of a distribution that conda brings."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: builder\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def _uv() -> str:
    import uv

    try:
        return uv.find_uv_bin()
    except FileNotFoundError:
        raise FetchError("uv is not installed whole", "install it again: pip install --force-reinstall uv") from None


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _indexes(
    recipe: Recipe, own: PipOptions, configured: PipConfiguration, settings: Settings, reporter: Reporter
) -> tuple[dict[str, str], list[str]]:
    """Where uv looks: variables (URLs may hold secrets, which no argument list may) and options.

    Raises:
        FetchError: an index that the environment or recipe names does not answer, and the recipe has no fallback.
    """
    wanted = [u for u in (recipe.pip.index_url or own.index_url, *own.extra_index_urls, *recipe.pip.extra_index_urls) if u]
    links = [*own.find_links, *recipe.pip.find_links]
    answering = []
    for url in wanted:
        problem = None if url.startswith("file:") else "offline" if settings.offline else _problem(url)
        if problem is None:
            answering.append(url)
        elif recipe.pip.fallback == "pip":
            reporter.warn(f"the package index {shown(url)} {problem}: using what pip's configuration offers instead")
        else:
            raise FetchError(
                f"{recipe.environment_path}: the package index {shown(url)} {problem}",
                "check the network, name another index, or let the recipe fall back: pip: {fallback: pip}",
            )
    main = recipe.pip.index_url or own.index_url
    default = main if main in answering else configured.index_url
    extra = [u for u in answering if u != main] + [u for u in configured.extra_index_urls if _usable(u)]
    links += [f for f in configured.find_links if f not in links]
    environ: dict[str, str] = {}
    options: list[str] = []
    if own.no_index or configured.no_index:
        options.append("--no-index")
    if settings.offline:
        options.append("--offline")
    if default:
        environ["UV_DEFAULT_INDEX"] = default
    if extra and "--no-index" not in options:
        environ["UV_INDEX"] = " ".join(extra)
    if links:
        environ["UV_FIND_LINKS"] = ",".join(str(recipe.root / f) if "://" not in f and not f.startswith("/") else f for f in links)
    if configured.cert:
        environ["SSL_CERT_FILE"] = configured.cert
    return environ, options


def _usable(url: str) -> bool:
    """A ``file:`` index counts only where it is a whole simple index (some are folders that pip alone forgives)."""
    return not url.startswith("file:") or (Path(unquote(urlsplit(url).path)) / "index.html").is_file()


def _problem(url: str) -> str | None:
    try:
        with httpx.Client(timeout=_PROBE_SECONDS, follow_redirects=True, verify=tls_context()) as client:
            answer = client.head(url.rstrip("/") + "/")
    except httpx.HTTPError as e:
        return f"does not answer ({type(e).__name__})"
    return f"answers HTTP {answer.status_code}" if answer.status_code >= 500 else None


def _dateless(recipe: Recipe, environment: Environment) -> list[str]:
    """Requirements that come from indexes or folders which know no upload dates: those pinned to one version."""
    names = []
    for text in environment.pip:
        requirement = Requirement(text)
        if any(s.operator in ("==", "===") and "*" not in s.version for s in requirement.specifier):
            names.append(canonicalize_name(requirement.name))
    return names


def _preferences(previous: Sequence[LockedPackage]) -> str:
    """Pins that uv keeps where it can, as a minimal pylock.toml."""
    lines = ['lock-version = "1.0"', 'created-by = "builder"']
    for p in previous:
        wheel = f'{{ url = "https://invalid.example/{p.filename}", hashes = {{ sha256 = "{p.sha256}" }} }}'
        lines += ["[[packages]]", f'name = "{p.name}"', f'version = "{p.version}"', f"wheels = [{wheel}]"]
    return "\n".join(lines) + "\n"


def _refusal(recipe: Recipe, stderr: str, provided: dict[str, str]) -> SolveError:
    text = re.sub(r"(\w+://)[^/\s@]*@", r"\1", stderr.strip()) or "uv gave no reason"
    cure = "loosen a version in the pip: section, or add the index that has it (--extra-index-url)"
    if any(f"{n} @ " in text or f"{n}==" in text for n in provided):
        cure = "a pip package wants another version than conda brings: loosen one of them, or take both from one side"
    elif "no wheels" in text or "only-binary" in text or "no usable wheels" in text.lower():
        cure = "only a source distribution exists, and nothing is run in a layered build: take it from conda, or make a wheel and offer it by --find-links"
    body = "\n".join(f"    {line}" for line in text.splitlines())
    return SolveError(f"{recipe.environment_path}: the pip part cannot be satisfied:\n{body}", cure)


def supported_tags(python: str, platform: str, glibc: int) -> list[Tag]:
    """The wheel tags that the target's Python takes, the best first."""
    machine = _MACHINE[platform]
    major, minor = (int(x) for x in python.split(".")[:2])
    lowest = 5 if machine == "x86_64" else 17
    aliases = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms: list[str] = []
    for g in range(glibc, lowest - 1, -1):
        platforms.append(f"manylinux_2_{g}_{machine}")
        if g in aliases and (g == 17 or machine == "x86_64"):
            platforms.append(f"{aliases[g]}_{machine}")
    platforms.append(f"linux_{machine}")
    return [
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms),
    ]


def _wheels(item: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """File name, URL and sha256 of each wheel of a pylock package."""
    archives = [*item.get("wheels", [])]
    if "archive" in item:
        archives.append(item["archive"])
    for w in archives:
        url = w.get("url") or w.get("path") or ""
        name = w.get("name") or unquote(urlsplit(url).path).rsplit("/", 1)[-1]
        if name.endswith(".whl"):
            local = url.startswith("file:") or "://" not in url
            yield name, FIND_LINKS + name if local else url, w.get("hashes", {}).get("sha256", "")


def _locked(recipe: Recipe, item: dict[str, Any], name: str, tags: list[Tag]) -> LockedPackage:
    rank = {tag: i for i, tag in enumerate(tags)}
    best: tuple[int, str, str, str] | None = None
    for filename, url, sha256 in _wheels(item):
        fits = [rank[t] for t in parse_wheel_filename(filename)[3] if t in rank]
        if fits and sha256 and (best is None or (min(fits), filename) < best[:2]):
            best = (min(fits), filename, url, sha256)
    if best is None:
        raise SolveError(
            f"{recipe.environment_path}: {name} {item.get('version', '')} has no wheel with a hash for {recipe.platform}",
            "take it from conda, ask for another version, or offer a wheel by --find-links",
        )
    dependencies = {canonicalize_name(d["name"]): "*" for d in item.get("dependencies", [])}
    return LockedPackage(name, str(item["version"]), "pip", recipe.platform, best[2], best[3], dependencies=dependencies)
