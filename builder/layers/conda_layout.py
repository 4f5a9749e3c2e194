"""Where the files of a conda package go in the image, and which Python they are for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from builder.errors import LayerError
from builder.layers.conda_archive import fault, is_safe
from builder.layers.conda_info import PackageInfo, PathInfo, read_info
from builder.layers.conda_prefix import entry_point_shebang
from builder.layers.conflicts import module_of
from builder.layers.entry import Entry, Inline, LinkContext
from builder.model import BASE_PYTHON, Fetched, LockedPackage

#: As many symlinks as the Linux kernel follows.
_MAX_LINKS = 40

_ENTRY_POINT = """\
{shebang}
# -*- coding: utf-8 -*-
import re
import sys

from {module} import {head}

if __name__ == '__main__':
\tsys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
\tsys.exit({function}())
"""


def python_context(
    packages: Sequence[LockedPackage],
    fetched: Sequence[Fetched],
    prefix: str,
    platform: str,
    requested: frozenset[str],
) -> LinkContext:
    """Returns what linking depends on: the prefix, the locked conda Python and its site-packages.

    The python package may state its site-packages (CEP 17). If it does not, they are
    ``lib/pythonX.Y/site-packages``, with a ``t`` after the version for a free-threaded build.

    Args:
        packages: all packages of the platform.
        fetched: the fetched conda packages.
        prefix: folder of the environment in the image.
        platform: conda's name of the platform, ``linux-64``.
        requested: names in the environment file.

    Raises:
        LayerError: the python package is damaged, or is locked but was not fetched.
    """
    locked = next((p for p in packages if p.manager == "conda" and p.name == "python"), None)
    if locked is None:
        return LinkContext(prefix, "", "", platform, requested)
    python = next((f for f in fetched if f.package == locked), None)
    if python is None:
        raise LayerError(f"{locked.filename} was not fetched", "this is a bug in builder; please report it")
    match = re.match(r"(\d+)\.(\d+)", locked.version)
    if match is None:
        raise LayerError(
            f"{locked.filename}: {locked.version!r} is not a version of Python", "lock another python"
        )
    site_packages = read_info(python).index.get("python_site_packages_path")
    if not site_packages:
        free_threaded = re.search(rf"_cp{match[1]}{match[2]}t$", locked.build)
        site_packages = f"lib/python{match[0]}{'t' if free_threaded else ''}/site-packages"
    elif not isinstance(site_packages, str) or not is_safe(site_packages):
        raise fault(python, f"unsafe python_site_packages_path {site_packages!r}")
    return LinkContext(prefix, match[0], site_packages, platform, requested)


class CondaLayout:
    """Where a package's files go, and which files linking generates.

    Raises:
        LayerError: the package is unsafe, or needs a Python that the environment does not have.
    """

    def __init__(self, fetched: Fetched, info: PackageInfo, context: LinkContext) -> None:
        if info.noarch == "python" and not context.python:
            raise LayerError(
                f"{fetched.package.filename} is noarch python, and the environment has no python",
                "add python to the environment's conda dependencies",
            )
        self._fetched = fetched
        self._noarch_python = info.noarch == "python"
        self._context = context
        self._root = context.prefix.strip("/") + "/"
        self.is_requested = fetched.package.name in context.requested
        """Whether the environment file lists the package."""
        self.record_path = self.image_path(f"conda-meta/{_stem(fetched, info)}.json")
        """Image path of the package's record in conda-meta."""
        self.entry_points = [self._entry_point(*point) for point in info.entry_points]
        """The generated scripts."""
        self.paths: dict[str, PathInfo] = {self.image_path(p.path): p for p in info.paths}
        """By image path, in the order of paths.json. Files that linking generates are not listed, and no
        compiled module whose source is in the package: it names the source's time when the package was
        built, which is not that in the image, so Python ignores it."""
        for generated in (self.record_path, *(e.path for e in self.entry_points)):
            self.paths.pop(generated, None)
        for path in [path for path in self.paths if module_of(path) in self.paths]:
            del self.paths[path]
        self._check_folders()

    def image_path(self, path: str) -> str:
        """Returns the image path of a path in the package."""
        if self._noarch_python:
            if path.startswith("site-packages/"):
                path = self._context.site_packages + path[len("site-packages") :]
            elif path.startswith("python-scripts/"):
                path = "bin" + path[len("python-scripts") :]
        return self._root + path

    def relative(self, path: str) -> str:
        """Returns an image path relative to the prefix."""
        return path[len(self._root) :]

    def check_links(self, links: Mapping[str, str]) -> None:
        """Checks symlinks.

        Args:
            links: the texts of all symlinks of the package, by image path.

        Raises:
            LayerError: a link points outside the prefix, directly or by way of other links.
        """
        for path, target in links.items():
            name = self.paths[path].path
            if not is_safe(f"link-{target}".replace("/", "|")):  # NUL, or not UTF-8
                raise fault(self._fetched, f"{name!r} is a link to {target!r}, which is not a path")
            if self._leaves(path, links) and not self._is_base_python(path):
                raise fault(self._fetched, f"{name!r} is a link that leaves the environment: {target!r}")

    def _is_base_python(self, path: str) -> bool:
        """Returns whether a path is the link to the base image's interpreter, which builder made."""
        is_ours = self._fetched.package.url.startswith(BASE_PYTHON)
        return is_ours and self.relative(path).startswith("bin/python")

    def _leaves(self, path: str, links: Mapping[str, str]) -> bool:
        """Returns whether a path leaves the prefix, if all symlinks on its way are followed.

        ``done`` is the path walked so far, ``todo`` the parts ahead in reverse order. The text of a symlink
        replaces its name: its parts are put in front of the parts ahead. Invariant: ``done`` is inside the
        prefix.

            lib/a/x with lib/a -> ../b      done            ahead
                                            lib             a x
                                            lib/a (link)    x
                                            lib             .. b x
                                            (prefix)        b x
        """
        base = self._root.rstrip("/").split("/")
        done = list(base)
        todo = self.relative(path).split("/")[::-1]
        followed = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done.pop()
                if len(done) < len(base):
                    return True
                continue
            done.append(part)
            target = links.get("/".join(done))
            if target is None:
                continue
            followed += 1
            if followed > _MAX_LINKS:  # a loop, which leads nowhere
                return False
            done.pop()
            if target.startswith("/"):
                if not (target + "/").startswith(f"/{self._root}"):
                    return True
                done = list(base)
                target = target[len(self._root) :]
            todo += target.split("/")[::-1]
        return False

    def _check_folders(self) -> None:
        for path in self.paths:
            for folder in _parents(path):
                info = self.paths.get(folder)
                if info is not None and info.kind != "dir":
                    raise fault(self._fetched, f"{info.path!r} is a {info.kind} and has files below it")

    def _entry_point(self, command: str, module: str, function: str) -> Entry:
        text = _ENTRY_POINT.format(
            shebang=entry_point_shebang(self._context.interpreter),
            module=module,
            function=function,
            head=function.split(".")[0],
        )
        data = text.encode()
        return Entry(f"{self._root}bin/{command}", "file", 0o775, len(data), content=Inline(data))


def _stem(fetched: Fetched, info: PackageInfo) -> str:
    """Returns ``name-version-build``, the name of the package's record."""
    stem = "-".join(str(info.index.get(key, "")) for key in ("name", "version", "build"))
    if "/" in stem or not is_safe(stem):
        raise fault(fetched, f"its info/index.json has an unsafe name, version or build: {stem!r}")
    return stem


def _parents(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)
