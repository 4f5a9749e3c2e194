"""The pip part of a lock, resolved by uv for the locked Python and the target's glibc. Wheels only: nothing is built or run."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builder.config.recipe import Recipe
from builder.errors import BuilderError, ConfigError, FetchError, SolveError
from builder.lock.conda import PROBE_TIMEOUT
from builder.lock.environment import Environment
from builder.lock.inputs import virtual_packages
from builder.lock.names import BUILTIN, conda_mapping, pypi_name
from builder.lock.urls import expanded, unexpanded
from builder.model import FIND_LINKS, LockedPackage
from builder.net.mirrors import mirrored_url, public_url
from builder.progress import QUIET, Reporter
from builder.redact import redact
from builder.settings import Settings
from builder.store.folders import CacheFolders

#: The glibc minors that uv has a manylinux platform for.
_GLIBC = (17, 28, *range(31, 41))
_ARCHITECTURE = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
#: uv's own settings that say how to reach something; those that say what to take are pip's and the recipe's business.
_UV_KEPT = re.compile(r"UV_(HTTP_TIMEOUT|CONCURRENT_|NATIVE_TLS|SYSTEM_CERTS|KEYRING_PROVIDER|INSECURE_HOST)")
_TIME_LIMIT_S = 900


def solve_pip(
    recipe: Recipe,
    environment: Environment,
    conda: Sequence[LockedPackage],
    settings: Settings,
    *,
    newest: datetime | None = None,
    keep: Sequence[LockedPackage] = (),
    update: frozenset[str] = frozenset(),
    reporter: Reporter = QUIET,
) -> list[LockedPackage]:
    """The wheels that the environment's pip section needs on top of its conda packages, without any that conda brings.

    Arguments and errors are those of :func:`builder.lock.conda.solve_conda`.
    """
    python = next((p for p in conda if p.name == "python"), None)
    if python is None:
        raise SolveError(
            f"{environment.path}: a pip section, but no python among the conda packages",
            "add 'python=3.11' to dependencies:",
        )
    settings.tmpdir.mkdir(parents=True, exist_ok=True)
    prefix = f"blob-{socket.gethostname()}-{os.getpid()}-"  # a name that Store.sweep knows
    with tempfile.TemporaryDirectory(prefix=prefix, dir=settings.tmpdir) as name:
        work = Path(name)
        provided = _provided(conda, settings)
        for spec in environment.pip:
            if spec.name in provided and (extras := Requirement(spec.text).extras):
                reporter.warn(
                    f"{spec.where}: conda brings {spec.name}; "
                    f"what its extra {', '.join(sorted(extras))} needs has to be asked for by name"
                )
        (work / "stubs").mkdir()
        (work / "constraints.txt").write_text(
            "".join(f"{n} @ {_stub(work / 'stubs', n, v).as_uri()}\n" for n, v in provided.items())
        )
        lines = _Sources(recipe, environment, settings, reporter).lines()
        # Addresses may hold passwords, so they travel in a file that only this user can read, never as arguments.
        (work / "requirements.in").write_text(
            "".join(f"{line}\n" for line in [*lines, *(s.text for s in environment.pip)])
        )
        if keep:
            (work / "pylock.toml").write_text(
                'lock-version = "1.0"\ncreated-by = "builder"\n'
                + "".join(
                    f'[[packages]]\nname = "{canonicalize_name(p.name)}"\nversion = "{p.version}"\n'
                    for p in keep
                )
            )
        _run_uv(work, recipe, python.version, newest, update, settings, environment, provided, lines)
        packages = tomllib.loads((work / "pylock.toml").read_text()).get("packages", [])
    tags = _tags(recipe, python.version)
    return [_locked(p, recipe, tags, lines, settings) for p in packages if p["name"] not in provided]


# what conda brings ----------------------------------------------------------------------------------------------------


def _provided(conda: Sequence[LockedPackage], settings: Settings) -> dict[str, str]:
    """PyPI names and versions of the conda packages that are Python's, as conda-lock sees it: those that depend on python."""
    ours = [p for p in conda if "python" in p.dependencies]
    plain = {p.name for p in ours} <= {"pip", "setuptools", "wheel"}
    mapping = BUILTIN if plain else conda_mapping(settings)
    out: dict[str, str] = {}
    for package in ours:
        name = pypi_name(package.name, mapping)
        if name in out and name == canonicalize_name(package.name):
            continue  # python-xxhash is PyPI's xxhash, conda's xxhash is the library below
        try:
            out[name] = str(Version(package.version))
        except InvalidVersion:
            out[name] = ".".join(re.findall(r"\d+", package.version)) or "0"
    return dict(sorted(out.items()))


def _stub(folder: Path, name: str, version: str) -> Path:
    """A wheel with metadata alone: tells uv that this version is there, and needs nothing more from PyPI."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{stem}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: builder\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path


# where wheels come from -----------------------------------------------------------------------------------------------


class _Sources:
    """Indexes and find-links of the environment, the recipe and pip's own configuration, in pip's order of precedence."""

    def __init__(
        self, recipe: Recipe, environment: Environment, settings: Settings, reporter: Reporter
    ) -> None:
        from builder.net.pipconfig import pip_configuration

        self._recipe = recipe
        self._environment = environment
        self._settings = settings
        self._reporter = reporter
        self._pip = pip_configuration()

    def lines(self) -> list[str]:
        """As lines of a requirements file; indexes and pages of the environment and the recipe by their mirrors.

        Raises:
            FetchError: an index that the environment or the recipe names does not answer, and the recipe names no fallback.
        """
        recipe, environment = self._recipe.pip, self._environment
        index = self._mirrored(recipe.index_url or environment.index_url or "") or None
        extra = list(
            dict.fromkeys(map(self._mirrored, [*environment.extra_index_urls, *recipe.extra_index_urls]))
        )
        silent = self._silent([u for u in (index, *extra) if u])
        if index in silent:
            index = None
        extra = [u for u in extra if u not in silent]
        default = index or self._pip.index_url or self._mirrored(_default_index())
        if self._pip.no_index and not index:
            indexes = extra
            out = [f"--index-url {extra[0]}"] if extra else ["--no-index"]  # without one uv would ask PyPI
        else:
            # pip treats all indexes alike. The main one stands first as well, so that of two indexes with the same wheel it is
            # the one whose URL is locked, not a mirror on this machine's disk.
            indexes = [*([default] if default else []), *extra, *self._pip.extra_index_urls]
            out = [f"--index-url {default}"] if default else []
        out += [f"--extra-index-url {u}" for u in dict.fromkeys(indexes)]
        links = [
            *(
                self._mirrored(_place(f, environment.path.parent, str(environment.path)))
                for f in environment.find_links
            ),
            *(
                self._mirrored(_place(f, self._recipe.root, str(self._recipe.source)))
                for f in recipe.find_links
            ),
            *(_place(f, Path.cwd(), "pip's configuration") for f in self._pip.find_links),
        ]
        return out + [f"--find-links {link}" for link in dict.fromkeys(links)]

    def _mirrored(self, url: str) -> str:
        return mirrored_url(self._settings, url)

    def _silent(self, urls: Sequence[str]) -> set[str]:
        """The indexes that do not answer; only when the recipe lets pip's configuration take over."""
        asked = {
            u: expanded(u, str(self._environment.path)) for u in urls if u.startswith(("http://", "https://"))
        }
        if not asked or self._settings.offline:
            return set()
        with ThreadPoolExecutor(len(asked)) as pool:
            found = {
                u: why for u, why in zip(asked, pool.map(_no_answer, asked.values()), strict=True) if why
            }
        for url, why in found.items():
            if self._recipe.pip.fallback != "pip":
                raise FetchError(
                    f"{self._environment.path}: package index {redact(url)} does not answer ({why})",
                    "check the network, or let pip's own configuration take over: "
                    f"pip: {{fallback: pip}} in {self._recipe.source or 'the recipe'}",
                )
            self._reporter.warn(
                f"package index {redact(url)} does not answer ({why}): what pip's own configuration offers takes over"
            )
        return set(found)


def _no_answer(url: str) -> str:
    import httpx

    from builder.net.http import tls_context

    try:
        answer = httpx.head(url, timeout=PROBE_TIMEOUT, follow_redirects=True, verify=tls_context())
    except httpx.HTTPError as e:
        return redact(str(e)) or type(e).__name__
    return f"HTTP {answer.status_code}" if answer.status_code >= 500 else ""


def _default_index() -> str:
    """pip's built-in index; empty when there is no pip (uv then takes its own)."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ""
    return str(PyPI.simple_url)


def _place(link: str, folder: Path, named_by: str) -> str:
    """A find-links page or folder as a URL."""
    if "://" in link or "$" in link:
        return link
    path = (folder / Path(link).expanduser()).absolute()
    if not path.exists():
        raise ConfigError(
            f"{named_by}: --find-links {link}: {path} does not exist",
            "correct it; a relative path starts at the file's folder",
        )
    return path.as_uri()


# uv -------------------------------------------------------------------------------------------------------------------


def _run_uv(
    work: Path,
    recipe: Recipe,
    python: str,
    newest: datetime | None,
    update: frozenset[str],
    settings: Settings,
    environment: Environment,
    provided: Mapping[str, str],
    sources: Sequence[str],
) -> None:
    from builder.net.pipconfig import pip_configuration

    command = [
        _uv(),
        "pip",
        "compile",
        "requirements.in",
        "--constraints",
        "constraints.txt",
        "--format",
        "pylock.toml",
        "--output-file",
        "pylock.toml",
        "--no-config",
        "--no-header",
        "--no-annotate",
        "--quiet",
        "--only-binary",
        ":all:",
        "--index-strategy",
        "unsafe-best-match",
        "--python",
        sys.executable,
        "--no-python-downloads",
        "--python-version",
        python,
        "--python-platform",
        _platform(recipe),
        "--cache-dir",
        str(CacheFolders(settings.cache).uv),
        *(("--offline",) if settings.offline else ()),
        *(("--exclude-newer", newest.strftime("%Y-%m-%dT%H:%M:%SZ")) if newest else ()),
        *(word for name in sorted(update) for word in ("--upgrade-package", name)),
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith("UV_") or _UV_KEPT.match(k)}
    cert = pip_configuration().cert
    if cert and "SSL_CERT_FILE" not in env:
        env["SSL_CERT_FILE"] = cert
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env={**env, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FetchError(
            f"{environment.path}: uv found no answer in {_TIME_LIMIT_S} s",
            "check the network and the indexes",
        ) from None
    if done.returncode:
        raise _explained(unexpanded(done.stderr, sources), work, environment, provided)


def _uv() -> str:
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise SolveError(
            "uv is not installed", "install builder again with its dependencies: pip install builder-images"
        ) from None


def _platform(recipe: Recipe) -> str:
    return f"{_ARCHITECTURE[recipe.platform]}-manylinux_2_{max(m for m in _GLIBC if m <= max(_glibc(recipe), _GLIBC[0]))}"


def _glibc(recipe: Recipe) -> int:
    """The minor of the target's glibc 2.x."""
    text = virtual_packages(recipe)["__glibc"]
    match = re.match(r"2\.(\d+)", text)
    if match is None:
        raise ConfigError(
            f"{recipe.source}: virtual_packages.__glibc: {text!r} is not a version of glibc 2",
            'write it as "2.31"',
        )
    return int(match[1])


def _explained(
    stderr: str, work: Path, environment: Environment, provided: Mapping[str, str]
) -> BuilderError:
    text = redact(stderr).replace(f"{work}/", "").replace("requirements.in", str(environment.path))
    text = re.sub(r"(?m)^\s*(error|cause):\s*", "", text).strip()
    if re.search(
        r"[Ff]ailed to fetch|error sending request|[Nn]etwork (connectivity )?(is|was) disabled|Could not connect",
        text,
    ):
        return FetchError(
            f"{environment.path}: pip packages: {text}",
            "check the network and the indexes; PIP_NO_INDEX=1 keeps to find-links",
        )
    named = [n for n in provided if re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", text)]
    cures = [f"conda brings {n} {provided[n]}, and pip may not bring it a second time" for n in named]
    if re.search(
        r"no (usable )?wheels|no wheels with|building from source is disabled|source distribution", text
    ):
        cures.append(
            "only wheels can be locked, since nothing is built or run: take a version that has one, "
            "or build the wheel and name its folder by --find-links"
        )
    if "exclude-newer" in text:
        cures.append(
            "exclude-newer hides what is newer, and what an index gives no upload date for: take a later date"
        )
    return SolveError(
        f"{environment.path}: nothing satisfies the pip section:\n{text}",
        "; ".join(cures) or "loosen a requirement of the pip section",
    )


# wheels ---------------------------------------------------------------------------------------------------------------


def _tags(recipe: Recipe, python: str) -> dict[Tag, int]:
    """What the image's Python installs, best first."""
    major, minor = (int(x) for x in re.findall(r"\d+", python)[:2])
    machine = _ARCHITECTURE[recipe.platform]
    platforms = list(_manylinux(_glibc(recipe), machine))
    interpreter = f"cp{major}{minor}"
    tags = [
        *cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
        *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def _manylinux(glibc: int, machine: str) -> Iterator[str]:
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    for minor in range(glibc, 4, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in legacy:
            yield f"{legacy[minor]}_{machine}"
    yield f"linux_{machine}"


def _locked(
    package: Mapping[str, Any],
    recipe: Recipe,
    tags: Mapping[Tag, int],
    sources: Sequence[str],
    settings: Settings,
) -> LockedPackage:
    name = package["name"]
    wheels = list(package.get("wheels") or ())
    if (archive := package.get("archive")) is not None:
        wheels.append(archive)
    ranked = [(rank, w) for w in wheels if (rank := _rank(_filename(w), tags)) is not None]
    if not ranked:
        raise SolveError(
            f"{name} {package.get('version', '')}: no wheel for {recipe.platform}",
            "only wheels can be locked, since nothing is built or run: take another version, "
            "or name a folder with its wheel by --find-links",
        )
    wheel = min(ranked, key=lambda pair: pair[0])[1]
    filename = _filename(wheel)
    sha256 = (wheel.get("hashes") or {}).get("sha256")
    if not sha256:
        raise SolveError(
            f"{filename}: its index gives no sha256",
            "take it from another index, or from a find-links folder",
        )
    url = public_url(settings, unexpanded(wheel.get("url", ""), sources))
    if not url.startswith(("http://", "https://")):
        url = FIND_LINKS + quote(filename, safe="+!")
    version = package.get("version") or str(parse_wheel_filename(filename)[1])
    return LockedPackage(name, version, "pip", recipe.platform, redact(url).partition("#")[0], sha256)


def _filename(wheel: Mapping[str, Any]) -> str:
    place: str = wheel.get("name") or wheel.get("url") or wheel.get("path") or ""
    return unquote(urlsplit(place).path if "://" in place else place).rsplit("/", 1)[-1]


def _rank(filename: str, tags: Mapping[Tag, int]) -> int | None:
    try:
        own = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return None
    return min((tags[t] for t in own if t in tags), default=None)
