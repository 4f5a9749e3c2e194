"""Reads real lock files with builder and with each format's own tool, and compares package by package.

    python scripts/compare_locks.py DIR [-v]

DIR has one folder for each format: ``pixi``, ``pylock``, ``condalock``, ``explicit``, ``requirements`` with
files, and ``uv`` with projects (``pyproject.toml`` beside ``uv.lock``). Prints how many files are identical,
different, or refused by one side.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.pylock import Pylock
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.errors import LockError
from builder.lock.formats import ForeignLock, foreign_python, read_foreign
from builder.lock.formats.common import marker_environment
from builder.lock.formats.uvlock import uv_program
from builder.lock.wheels import wheel_tags

PLATFORMS = ("linux-64", "linux-aarch64")
PYTHONS = ("3.12.4", "3.11.9", "3.13.1", "3.10.14", "3.14.0", "3.9.19")
VIRTUAL = {"__unix": "0", "__linux": "5.15", "__glibc": "2.39", "__cuda": "12.8"}
#: Of each package: manager, name, version, and its hash, or what it is built from.
Packages = set[tuple[str, ...]]


class Refused(Exception):
    """The reference refuses a file."""


def ours(lock: ForeignLock) -> Packages:
    found: Packages = {(p.manager, p.name, p.version, p.sha256 or p.md5 or "") for p in lock.packages}
    found |= {("pip", pin.name, pin.version, *(sorted(pin.sha256) or [""])) for pin in lock.pinned}
    return found | {("source", s.name, s.revision or s.sha256 or "local") for s in lock.sources}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-v", action="store_true", help="print each difference and refusal")
    options = parser.parse_args()
    wrong = 0
    for kind, compare in COMPARISONS.items():
        counts: Counter[str] = Counter()
        for path in _files(options.folder / kind):
            for platform in PLATFORMS:
                result, detail = compare(path, platform)
                counts[result] += 1
                if options.v and result != "identical":
                    print(f"{result}: {path.relative_to(options.folder)} {platform}: {detail}")
        wrong += counts["different"] + counts["crash"]
        print(f"{kind}: {len(_files(options.folder / kind))} files: {dict(counts)}")
    return 1 if wrong else 0


def _files(folder: Path) -> list[Path]:
    if folder.name == "uv":
        return sorted(path for path in folder.rglob("uv.lock"))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _compare(path: Path, platform: str, reference: Callable[[], Packages], **options: Any) -> tuple[str, str]:
    problem, theirs, mine = "", None, None
    try:
        theirs = reference()
    except Refused as e:
        problem = str(e)
    try:
        python = options.pop("python", None)
        lock = read_foreign(path, platform, python_version=python, virtual=VIRTUAL, **options)
        mine = ours(lock)
    except LockError as e:
        if theirs is None:
            return "refused by both", f"{e.message[:200]} / {problem[:100]}"
        return "refused by builder", e.message[:300]
    except Exception as e:
        return "crash", f"{type(e).__name__}: {e}"
    if theirs is None:
        return "refused by the tool", problem[:300]
    if mine == theirs:
        return "identical", str(len(mine))
    return "different", f"builder only {sorted(mine - theirs)[:3]}, tool only {sorted(theirs - mine)[:3]}"


def _python(path: Path) -> str:
    needs = SpecifierSet(foreign_python(path) or "")
    return next((version for version in PYTHONS if needs.contains(version)), PYTHONS[0])


def pixi(path: Path, platform: str) -> tuple[str, str]:
    """Against the YAML itself, whose layout depends on the version."""
    import yaml

    def reference() -> Packages:
        data = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        if "environments" not in data:
            chosen = [p for p in data["package"] if p["platform"] == platform]
            if not chosen:
                raise Refused("no such platform")
            return set(_pixi_old(chosen))
        environment = data["environments"].get("default")
        if environment is None:
            raise Refused("no default environment")
        names = _pixi_names(data, environment, platform)
        known = {_pixi_key(p): p for p in data["packages"] or ()}
        return set(_pixi_packages([known[next(iter(ref.items()))] for ref in names]))

    return _compare(path, platform, reference)


def _pixi_names(data: Any, environment: Any, platform: str) -> list[dict[str, str]]:
    subdirs = {p["name"]: p.get("subdir", p["name"]) for p in data.get("platforms", ())}
    names = [n for n in environment["packages"] if subdirs.get(n, n) == platform]
    if len(names) != 1:
        raise Refused(f"platforms {names}")
    return [
        {k: v for k, v in ref.items() if k in ("conda", "pypi", "conda_source")}
        for ref in environment["packages"][names[0]]
    ]


def _pixi_key(package: dict[str, Any]) -> tuple[str, str]:
    if "kind" in package:  # versions 4 and 5
        place = package.get("url") or package.get("path")
        return package["kind"], place
    kind = next(k for k in ("conda", "pypi", "conda_source") if k in package)
    return kind, package[kind]


def _pixi_old(packages: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for package in packages:
        hashes = package["hash"]
        yield package["manager"], package["name"], package["version"], hashes.get("sha256") or hashes["md5"]


def _pixi_packages(packages: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for package in packages:
        kind, place = _pixi_key(package)
        if kind == "conda_source" or (kind == "conda" and not place.startswith("http")):
            raise Refused("a conda source package")
        digest = package.get("sha256") or package.get("md5") or ""
        if kind == "conda":
            stem = re.sub(r"\.conda$|\.tar\.bz2$", "", place.rsplit("/", 1)[-1])
            name, version, _ = stem.rsplit("-", 2)
            yield "conda", name, version, digest
            continue
        plain = place.partition("#")[0]
        name = canonicalize_name(package["name"])
        if plain.endswith(".whl"):
            if "://" not in plain and not digest:  # pixi asks the file itself
                raise Refused("a wheel without a hash")
            yield "pip", name, package["version"], digest
        elif place.startswith("git+"):
            yield "source", name, place[-40:]
        else:
            yield "source", name, digest if "://" in place else "local"


def pylock(path: Path, platform: str) -> tuple[str, str]:
    """Against ``uv pip install --dry-run``, which selects by itself."""
    python = _safely(path)
    machine = "x86_64" if platform == "linux-64" else "aarch64"

    def reference() -> Packages:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "pylock.toml"
            text = re.sub(r"(?m)^requires-python = .*$", "", path.read_text())  # uv asks its own Python
            place.write_text(text)
            command = [uv_program(), "pip", "install", "--dry-run", "--no-config", "--target", f"{folder}/t"]
            command += ["-r", str(place), "--preview", "--color", "never", "--no-deps"]
            command += ["--python-version", python, "--python-platform", f"{machine}-manylinux_2_39"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise Refused(done.stderr[-300:])
        lines = re.findall(r"^ \+ ([^\s=]+)(?:==(\S+))?", done.stderr, re.MULTILINE)
        return {(name, version) for name, version in lines}

    try:
        theirs = reference()
    except Refused as e:
        theirs, problem = None, str(e)
    try:
        lock = read_foreign(path, platform, python_version=python, virtual=VIRTUAL)
    except LockError as e:
        return ("refused by both" if theirs is None else "refused by builder"), e.message[:300]
    if theirs is None:
        return "refused by the tool", problem
    mine = {(p.name, p.version) for p in lock.packages}
    built = {s.name for s in lock.sources}
    mine |= {(name, "") for name in built}
    theirs = {(name, "" if name in built else version) for name, version in theirs}
    if mine == theirs:
        return "identical", ""
    return "different", f"builder only {sorted(mine - theirs)[:3]}, tool only {sorted(theirs - mine)[:3]}"


def _safely(path: Path) -> str:
    try:
        return _python(path)
    except LockError:
        return PYTHONS[0]


def uv(path: Path, platform: str) -> tuple[str, str]:
    """Against uv's export as pylock.toml, of which ``packaging`` selects."""
    python = _safely(path)

    def reference() -> Packages:
        command = [uv_program(), "export", "--frozen", "--no-config", "--no-emit-project", "--quiet"]
        command += ["--no-default-groups", "--no-header", "--format", "pylock.toml", "--offline"]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(done.stderr[-300:])
        lock = Pylock.from_dict(tomllib.loads(done.stdout))
        tags = wheel_tags(platform, 39, python)
        found: Packages = set()
        chosen = lock.select(environment=marker_environment(platform, python), tags=tags)  # type: ignore
        for package, file in chosen:
            digest = (getattr(file, "hashes", None) or {}).get("sha256", "")
            if str(getattr(file, "filename", "") or getattr(file, "url", "")).endswith(".whl"):
                found.add(("pip", package.name, str(package.version), digest))
            else:
                found.add(("source", package.name, getattr(file, "commit_id", "") or digest or "local"))
        return found

    return _compare(path, platform, reference, python=python)


def conda_lock(path: Path, platform: str) -> tuple[str, str]:
    """Against conda-lock's parser and its choice of packages for one platform (category main)."""
    from conda_lock.lockfile import parse_conda_lock_file

    def reference() -> Packages:
        try:
            lock = parse_conda_lock_file(path)
        except Exception as e:
            raise Refused(f"{type(e).__name__}: {e}") from None
        lock.filter_virtual_packages_inplace()
        chosen = [p for p in lock.package if p.platform == platform and "main" in p.categories]
        if not chosen:
            raise Refused("no packages for the platform")
        return {_conda_lock_package(p) for p in chosen}

    return _compare(path, platform, reference)


def _conda_lock_package(package: Any) -> tuple[str, ...]:
    name = canonicalize_name(package.name) if package.manager == "pip" else package.name
    if package.url.startswith("git+"):
        return "source", name, package.url[-40:]
    if package.manager == "pip" and not package.url.partition("#")[0].endswith(".whl"):
        return "source", name, package.hash.sha256
    return package.manager, name, package.version, package.hash.sha256 or package.hash.md5


def explicit(path: Path, platform: str) -> tuple[str, str]:
    """Against rattler's ExplicitEnvironmentSpec."""
    from rattler.explicit_environment import ExplicitEnvironmentSpec

    def reference() -> Packages:
        try:
            spec = ExplicitEnvironmentSpec.from_path(path)
        except Exception as e:
            raise Refused(str(e)) from None
        found: Packages = set()
        subdirs = set()
        for entry in spec.packages:
            url, _, digest = str(entry.url).partition("#")
            *_, subdir, filename = url.split("/")
            name, version, _ = re.sub(r"\.conda$|\.tar\.bz2$", "", filename).rsplit("-", 2)
            subdirs.add(subdir)
            if not digest:
                raise Refused("no hash")
            found.add(("conda", name, version, digest.rpartition(":")[2]))
        if subdirs - {"noarch"} and platform not in subdirs:
            raise Refused("another platform")
        return found

    return _compare(path, platform, reference)


def requirements(path: Path, platform: str) -> tuple[str, str]:
    """Against pip's own parser of requirements files."""
    from pip._internal.network.session import PipSession
    from pip._internal.req.constructors import install_req_from_parsed_requirement
    from pip._internal.req.req_file import parse_requirements

    python = PYTHONS[0]

    def reference() -> Packages:
        found: Packages = set()
        try:
            parsed = list(parse_requirements(str(path), PipSession()))
            requirements = [install_req_from_parsed_requirement(p) for p in parsed if not p.constraint]
        except Exception as e:
            raise Refused(str(e)) from None
        environment: Any = {**marker_environment(platform, python), "extra": ""}
        for requirement in requirements:
            if requirement.markers and not Marker(str(requirement.markers)).evaluate(environment):
                continue
            if requirement.req is None or not requirement.is_pinned or requirement.link:
                raise Refused(f"{requirement} is not pinned")
            version = next(iter(requirement.specifier)).version
            hashes = requirement.hash_options.get("sha256", [])
            found.add(("pip", canonicalize_name(requirement.name), version, *(sorted(hashes) or [""])))
        return found

    return _compare(path, platform, reference, python=python)


COMPARISONS: dict[str, Callable[[Path, str], tuple[str, str]]] = {
    "pixi": pixi,
    "pylock": pylock,
    "uv": uv,
    "condalock": conda_lock,
    "explicit": explicit,
    "requirements": requirements,
}

if __name__ == "__main__":
    sys.exit(main())
