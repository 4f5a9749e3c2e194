"""Site files: what recipes for the same machine share, one YAML file per site.

A site file has the keys of a recipe that describe a machine (:data:`SITE_KEYS`). A recipe names
one, ``site: NAME``, and everything in the recipe wins over it. Site files are, in this order:

1. ``sites/NAME.yaml`` of the project,
2. those of this package.

A file whose name starts with ``_`` is not a site, but other site files can extend it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.formats.trees.inside import own_path

from .explain import validated
from .merge import load_chain, merge, near_hint
from .site import Site, SiteFile
from .yamlfile import YamlFile

#: Keys of a site file.
SITE_KEYS = tuple(SiteFile.model_fields)
#: Keys below ``site`` that a file does not inherit: who compared the file itself, and with what.
OWN_KEYS = ("checked", "sources")
Origin = Literal["package", "project"]

PACKAGE_FOLDER = Path(__file__).with_name("sitefiles")
#: Merged keys, and the files that they are from.
_Merged = tuple[dict[str, Any], list[YamlFile]]


def site_files(root: Path | None) -> dict[str, Path]:
    """Return the names of the sites and their files.

    Args:
        root: the project folder; None: no project.
    """
    return {name: path for name, path in all_site_files(root).items() if not name.startswith("_")}


def all_site_files(root: Path | None) -> dict[str, Path]:
    """Return the site files, with those that only others extend (``_NAME.yaml``)."""
    found: dict[str, Path] = {}
    for folder in (PACKAGE_FOLDER, *([own_path(root, "sites")] if root is not None else [])):
        found |= yaml_files(folder)
    return dict(sorted(found.items()))


def origin(path: Path) -> Origin:
    """Return the origin of a site file."""
    return "package" if path.parent == PACKAGE_FOLDER else "project"


def yaml_files(folder: Path) -> dict[str, Path]:
    """Return the YAML files of a folder by their stems, without hidden ones."""
    paths = sorted(folder.glob("*.y*ml"))
    return {path.stem: path for path in paths if not path.name.startswith(".")}


def load_site(name: str, root: Path | None, where: str = "") -> _Merged:
    """Read a site file and everything that it extends.

    Args:
        name: the site.
        root: the project folder; None: no project.
        where: file and line that name the site, for the message.

    Returns:
        The merged keys, and the files: the site's own first. The keys are not validated yet.

    Raises:
        ConfigError: there is no such site, or a file has a key that a site file cannot have.
    """
    files = all_site_files(root)
    if name not in files or name.startswith("_"):
        raise unknown_site(name, root, where)
    return load_site_from(name, files)


def load_site_from(name: str, files: Mapping[str, Path]) -> _Merged:
    """Read a site file as :func:`load_site`, from given files, also one that others extend."""
    yamls = load_chain(name, files, "site")
    for yaml in yamls:
        _check_keys(yaml)
    data: dict[str, Any] = {}
    for yaml in reversed(yamls):
        data = merge(data, {key: value for key, value in yaml.data.items() if key != "extends"})
        # nobody compared this file yet
        if yaml is not yamls[0] and isinstance(data.get("site"), dict):
            data["site"] = {k: v for k, v in data["site"].items() if k not in OWN_KEYS}
    return merge(data, {"site": {"name": name}}), yamls


def read_site(name: str, files: Mapping[str, Path]) -> SiteFile:
    """Read, merge and validate a site file.

    Args:
        name: the site.
        files: all site files, :func:`all_site_files`.

    Raises:
        ConfigError: a file is invalid; the message names file, line and key.
    """
    data, yamls = load_site_from(name, files)
    return validated(SiteFile, data, yamls)


def unknown_site(name: str, root: Path | None, where: str = "") -> ConfigError:
    """Return the error for a site that does not exist; ``where`` is the line that names it."""
    known = list(site_files(root))
    at = f"{where}: site: " if where else ""
    if retired := table(__file__, "retired.yaml").get(name):
        message = f"{at}{name} was switched off on {retired['day']}"
        return ConfigError(message, f"write site: {retired['successor']}")
    family = [one for one in known if len(name) > 2 and one.startswith(name)]  # alps, chameleon
    near = f"did you mean {', '.join(family)}?" if family else near_hint(name, known)
    advice = "builder sites lists the sites; builder sites new adds one"
    return ConfigError(f"{at}no site named {name!r}", f"{near} ({advice})" if near else advice)


def _check_keys(yaml: YamlFile) -> None:
    """Raise ConfigError for a key that a site file cannot have."""
    for key in map(str, yaml.data):
        if key not in (*SITE_KEYS, "extends"):
            hint = near_hint(key, SITE_KEYS, 0.75) or f"its keys: extends, {', '.join(SITE_KEYS)}"
            if key in Site.model_fields:
                hint = "write it below site:"
            raise ConfigError(f"{yaml.where(key)}: {key}: not a key of a site file", hint)
    site = yaml.data.get("site") or {}
    if not isinstance(site, dict):
        at = yaml.where("site")
        raise ConfigError(f"{at}: site: not a mapping", "write the site's keys below it")
    if "name" in site:
        at = yaml.where("site", "name")
        raise ConfigError(f"{at}: site.name", "remove it: a site has its file's name")


def site_of(yamls: list[YamlFile]) -> tuple[str, dict[str, Any], YamlFile | None]:
    """Return the name and the keys of a recipe's site, also from recipes that it extends.

    Args:
        yamls: the recipe's own file first.

    Returns:
        The name (empty: none is named), the merged keys of ``site:``, and the file that names the
        site.

    Raises:
        ConfigError: ``site`` is neither a name nor a mapping.
    """
    keys: dict[str, Any] = {}
    named: YamlFile | None = None
    for yaml in reversed(yamls):
        site = yaml.data.get("site")
        if site is None:
            continue
        if isinstance(site, str):
            site = {"name": site}
        if not isinstance(site, dict) or not isinstance(site.get("name", ""), str):
            problem = f"{yaml.where('site')}: site: neither a name nor a mapping of keys"
            hint = "write site: NAME, or site: {name: NAME, ...} to change some of its keys"
            raise ConfigError(problem, hint)
        named = yaml if "name" in site else named
        keys = merge(keys, site)
    return keys.get("name", ""), keys, named
