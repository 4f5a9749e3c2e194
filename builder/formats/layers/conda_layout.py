"""Where the files of a conda package go in the image, and which Python they are for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder.core.datafiles import script
from builder.core.errors import LayerError
from builder.core.model import BASE_PYTHON, Fetched, LockedPackage
from builder.formats.trees.member import ancestors, walk

from .conda_archive import PackageInfo, PathInfo, read_info
from .conda_prefix import entry_point_shebang
from .conflicts import module_of
from .entry import Entry, LinkContext
from .tar import is_safe
from .zips import fault


def python_of(python: Fetched) -> tuple[str, str]:
    """Return the version of a conda package of Python, ``3.11``, and its site-packages.

    The package may state its site-packages (CEP 17). If it does not, they are
    ``lib/pythonX.Y/site-packages``, with a ``t`` after the version for a free-threaded build.

    Raises:
        LayerError: the package is damaged.
    """
    package = python.package
    match = re.match(r"(\d+)\.(\d+)", package.version)
    if match is None:
        raise fault(package, f"{package.version!r} is not a version of Python")
    site_packages = read_info(python).index.get("python_site_packages_path")
    if not site_packages:
        threading = "t" if package.python_version.endswith("t") else ""
        site_packages = f"lib/python{match[0]}{threading}/site-packages"
    elif not isinstance(site_packages, str) or not is_safe(site_packages):
        raise fault(package, f"unsafe python_site_packages_path {site_packages!r}")
    return match[0], site_packages


class CondaLayout:
    """The image paths of a package's files, and the files that linking generates.

    Raises:
        LayerError: the package is unsafe, or needs a Python that the environment does not have.
    """

    def __init__(self, fetched: Fetched, info: PackageInfo, context: LinkContext) -> None:
        if info.noarch == "python" and not context.python:
            raise LayerError(
                f"{fetched.package.filename} is noarch python, and the environment has no python",
                "add python to the environment's conda dependencies",
            )
        self._package = fetched.package
        self._noarch_python = info.noarch == "python"
        self._context = context
        self._root = context.prefix.strip("/") + "/"
        self.is_requested = fetched.package.name in context.requested
        """Whether the environment file lists the package."""
        self.record_path = self.image_path(f"conda-meta/{_stem(fetched.package, info)}.json")
        """Image path of the package's record in conda-meta."""
        self.entry_points = [self._entry_point(*point) for point in info.entry_points]
        """The generated scripts."""
        self.paths: dict[str, PathInfo] = {self.image_path(p.path): p for p in info.paths}
        """By image path, in the order of paths.json. Files that linking generates are not listed,
        and no compiled module whose source is in the package: it names the source's time when the
        package was built, which is not that in the image, so Python ignores it."""
        for generated in (self.record_path, *(e.path for e in self.entry_points)):
            self.paths.pop(generated, None)
        for path in [path for path in self.paths if module_of(path) in self.paths]:
            del self.paths[path]
        self._check_folders()

    def image_path(self, path: str) -> str:
        """Return the image path of a path in the package."""
        if self._noarch_python:
            if path.startswith("site-packages/"):
                path = self._context.site_packages + path[len("site-packages") :]
            elif path.startswith("python-scripts/"):
                path = "bin" + path[len("python-scripts") :]
        return self._root + path

    def relative(self, path: str) -> str:
        """Return an image path relative to the prefix."""
        return path[len(self._root) :]

    def check_links(self, links: Mapping[str, str]) -> None:
        """Check symlinks.

        Args:
            links: the texts of all symlinks of the package, by image path.

        Raises:
            LayerError: a link points outside the prefix, directly or by way of other links.
        """
        for path, target in links.items():
            name = self.paths[path].path
            if not is_safe(f"link-{target}".replace("/", "|")):  # NUL, or not UTF-8
                raise fault(self._package, f"{name!r} is a link to {target!r}, which is not a path")
            if self._leaves(path, links) and not self._is_base_python(path):
                what = f"{name!r} is a link that leaves the environment: {target!r}"
                raise fault(self._package, what)

    def _is_base_python(self, path: str) -> bool:
        """Return whether a path is the link to the base image's interpreter, which builder made."""
        is_ours = self._package.url.startswith(BASE_PYTHON)
        return is_ours and self.relative(path).startswith("bin/python")

    def _leaves(self, path: str, links: Mapping[str, str]) -> bool:
        """Return whether a path leaves the prefix when all symlinks on it are followed.

        On the way from the image's root it may be above the prefix.
        """
        place = ""
        try:
            for place in walk(path, links.get):
                is_above = not place or self._root.startswith(f"{place}/")
                if not is_above and not f"{place}/".startswith(self._root):
                    return True
        except IndexError:
            return True
        except RecursionError:  # a loop, which leads nowhere
            return False
        return not f"{place}/".startswith(self._root)

    def _check_folders(self) -> None:
        for path in self.paths:
            for folder in ancestors(path):
                info = self.paths.get(folder)
                if info is not None and info.kind != "dir":
                    what = f"{info.path!r} is a {info.kind} and has files below it"
                    raise fault(self._package, what)

    def _entry_point(self, command: str, module: str, function: str) -> Entry:
        text = script(
            __file__,
            "entry_point.txt",
            shebang=entry_point_shebang(self._context.interpreter) + "\n",
            module=module,
            function=function,
            head=function.split(".")[0],
        )
        return Entry.of(f"{self._root}bin/{command}", text.encode(), 0o775)


def _stem(package: LockedPackage, info: PackageInfo) -> str:
    """Return ``name-version-build``, the name of the package's record."""
    stem = "-".join(str(info.index.get(key, "")) for key in ("name", "version", "build"))
    if "/" in stem or not is_safe(stem):
        raise fault(package, f"its info/index.json has an unsafe name, version or build: {stem!r}")
    return stem
