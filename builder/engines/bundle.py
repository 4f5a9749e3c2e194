"""The install bundle: what an engine copies into an image to install the lock there without a network.

The bundle holds the locked archives, whose hashes were checked, an installer, and ``install.sh``, which runs
it. micromamba, or rattler on the locked Python, installs the conda packages; the environment's own pip
installs the wheels.

    install.sh                       run with /bin/sh in the image
    conda/SUBDIR/NAME.conda          archives of conda packages
    wheels/NAME.whl                  archives of pip packages
    requirements.txt                 the wheels with their hashes, for pip
    micromamba, conda.txt            the program, and the conda packages in link order: with micromamba
    tool.tar, install_conda.py       Python with rattler, and what it runs: with rattler
    urls.json, requested.json        what conda-meta records of the packages: with rattler
    cacert.pem                       see _RATTLER: with rattler
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import certifi
from packaging.version import Version

from builder.config.recipe import Recipe
from builder.engines.base import BuildRequest
from builder.engines.prepare import InstallInputs
from builder.engines.tools import micromamba, rattler_tool
from builder.errors import BuilderError, LockError
from builder.layers.conda_meta import recorded_url
from builder.model import Fetched
from builder.store.files import link_or_copy, sha256_file, space_errors

#: Path of the bundle in the image during the build. It is removed at the end.
PLACE = "/opt/builder-bundle"
#: py-rattler's wheels (abi3) work with this Python and all later ones.
_RATTLER_PYTHON = Version("3.10")
_INSTALL_CONDA = Path(__file__).with_name("install_conda.py")

_INSTALL = """\
#!/bin/sh
# Installs the locked packages of target {target}, without a network. Written by builder, see docs/engines.md.
set -eu
umask 022
bundle={place}
prefix={prefix}
rm -rf "$prefix"
{conda}{pip}"""
_MICROMAMBA = """\
# the conda packages, by micromamba
chmod 755 "$bundle/micromamba"
MAMBA_ROOT_PREFIX="$bundle/mamba" "$bundle/micromamba" create --yes --no-rc --no-pyc --prefix "$prefix" \\
    --file "$bundle/conda.txt"
"""
_RATTLER = """\
# the conda packages, by rattler on the locked python
mkdir "$bundle/tool"
tar -xf "$bundle/tool.tar" -C "$bundle/tool"
unset SSL_CERT_DIR
# rattler requires certificates, although it opens no connection; not every base image has some
SSL_CERT_FILE="$bundle/cacert.pem" "$bundle/tool/bin/python{python}" -I -S -B \\
    "$bundle/install_conda.py" "$bundle" "$prefix"
"""
_PIP = """\
# the wheels, by the environment's own pip
PIP_CONFIG_FILE=/dev/null PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \\
    "$prefix/bin/python" -I -B -m pip install --no-index --no-deps --no-cache-dir --no-compile \\
    --require-hashes --find-links "$bundle/wheels" --requirement "$bundle/requirements.txt"
"""

Files = dict[str, bytes | Path]


@dataclass(frozen=True)
class InstallBundle:
    """The files of an install bundle."""

    files: Mapping[str, bytes | Path]
    """Content, or the file that holds it, by path in the bundle."""
    installer: str
    """What installs the conda packages: ``micromamba`` or ``rattler``."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(
            len(content) if isinstance(content, bytes) else content.stat().st_size
            for content in self.files.values()
        )

    def write(self, folder: Path) -> None:
        """Writes the bundle into a new folder: hard links to the cache where possible, else copies.

        Raises:
            SpaceError: The disk is full.
        """
        with space_errors(folder):
            for name, content in self.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    link_or_copy(content, path)


def make_bundle(request: BuildRequest, inputs: InstallInputs) -> InstallBundle:
    """Collects the install bundle of a build.

    Raises:
        LockError: The lock has wheels but no pip, or no Python that the installer runs on.
        FetchError, RegistryError, ImageError: The recipe asks for micromamba, and it is not available.
    """
    recipe = request.recipe
    conda = [f for f in inputs.fetched if f.package.manager == "conda"]
    wheels = [f for f in inputs.fetched if f.package.manager == "pip"]
    _require_pip(recipe, conda, wheels)

    files: Files = {_conda_path(f): f.path for f in conda}
    if wheels:
        files |= {f"wheels/{f.package.filename}": f.path for f in wheels}
        files["requirements.txt"] = _lines(map(_requirement, wheels))

    program = _find_micromamba(request)
    if program is not None:
        installer, command = "micromamba", _MICROMAMBA
        files["micromamba"] = program
        files["conda.txt"] = _lines(["@EXPLICIT", *(f"file://{PLACE}/{_conda_path(f)}" for f in conda)])
    else:
        python = _require_rattler_python(recipe, inputs.context.python)
        installer, command = "rattler", _RATTLER.format(python=python)
        files |= _rattler_files(request, conda)

    script = _INSTALL.format(
        target=recipe.name,
        place=PLACE,
        prefix=shlex.quote(recipe.conda.prefix),
        conda=command if conda else "",
        pip=_PIP if wheels else "",
    )
    files["install.sh"] = script.encode()
    return InstallBundle(files, installer)


def _require_pip(recipe: Recipe, conda: Sequence[Fetched], wheels: Sequence[Fetched]) -> None:
    missing = {"python", "pip"} - {f.package.name for f in conda}
    if wheels and missing:
        names = " and ".join(sorted(missing))
        raise LockError(
            f"the lock of target {recipe.name} has wheels but no {names} from conda, and this engine "
            "installs wheels with pip",
            f"add {names} to {recipe.environment or 'an environment file'} and lock again, or build with "
            "--engine layered, which needs neither",
        )


def _require_rattler_python(recipe: Recipe, python: str | None) -> str:
    if not python or Version(python) < _RATTLER_PYTHON:
        locked = f"python {python}" if python else "no python"
        raise LockError(
            f"target {recipe.name} locks {locked}, and rattler needs {_RATTLER_PYTHON} or newer",
            "use micromamba (installer: program: micromamba), or build with --engine layered",
        )
    return python


def _find_micromamba(request: BuildRequest) -> Path | None:
    """The path of micromamba; None if rattler is to be used."""
    wanted = request.recipe.installer.program
    if wanted == "rattler":
        return None
    try:
        return micromamba(request)
    except BuilderError as e:
        if wanted == "micromamba":
            raise
        request.reporter.note(
            f"micromamba is not available ({e.message}); using rattler to install conda packages"
        )
        return None


def _rattler_files(request: BuildRequest, conda: Sequence[Fetched]) -> Files:
    urls = {_conda_path(f): recorded_url(f.package.url) for f in conda}
    return {
        "tool.tar": rattler_tool(request, conda),
        "install_conda.py": _INSTALL_CONDA,
        "cacert.pem": Path(certifi.where()),
        "urls.json": json.dumps(urls, indent=1).encode(),
        "requested.json": json.dumps(sorted(request.requested)).encode(),
    }


def _conda_path(fetched: Fetched) -> str:
    return f"conda/{fetched.package.subdir}/{fetched.package.filename}"


def _requirement(wheel: Fetched) -> str:
    package = wheel.package
    digest = f"sha256:{package.sha256}" if package.sha256 else sha256_file(wheel.path)
    return f"{package.name}=={package.version} --hash={digest}"


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
