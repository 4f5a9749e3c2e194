"""Recipes: one YAML file per target, loaded into a frozen model.

A recipe can extend another one with ``extends: NAME``. Mappings are merged key by key; all other
values are replaced. A file whose name starts with ``_`` is not a target, but other recipes can
extend it. With ``site: NAME`` it starts from a site file (:mod:`builder.lock.config.sites`); the
recipe, and what it extends, win.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from builder.core.errors import ConfigError
from builder.core.model import Compression, LayerOptions
from builder.core.version import __version__
from builder.formats.trees.inside import check_inside, own_path

from .explain import validated
from .fields import Date, Line, Model, TargetName, Variable, VirtualPackages, empty
from .merge import load_chain, merge, near_hint
from .site import Engine, Format, Gpu, Platform, SifOptions, Site
from .sites import load_site, site_of, yaml_files
from .smoketest import SmokeTest
from .steps import PackageName, Step, WheelBuild
from .yamlfile import YamlFile, load_yaml

log = logging.getLogger(__name__)

#: Whose modules are compiled when the image is built.
Bytecode = Literal["all", "none"]
#: Where the Python of the image comes from.
Python = Literal["conda", "base", "base-with-packages"]

#: Folders that cannot be the prefix of the conda environment.
_SYSTEM_FOLDERS = ("", "/usr", "/bin", "/lib")
#: A path below the project folder that is no file.
_NO_FILE = "recipes/no environment file"
#: The default prefix of environments with the base's Python.
_VENV = "/opt/env"
#: How the names of conda-lock's files end.
_CONDA_LOCK_SUFFIXES = (".yml", ".yaml")
#: Suffixes of environment files and locks that the name of builder's own lock does not have.
_STEM_SUFFIXES = (".yml", ".yaml", ".toml", ".lock", ".txt", ".in")
#: Keys of a recipe that a recipe extending it does not inherit.
_NOT_INHERITED = ("name", "description", "group")
#: Keys about a file itself: they are not merged.
_OF_FILE = ("extends", "site", "version")
#: The version of the recipes' format that this builder reads, also in files that name none.
FORMAT_VERSION = 1
#: A publish group that can be an option of the command line.
_GROUP = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


class Conda(Model):
    """Options of the conda packages."""

    channels: tuple[Line, ...] = ()
    """Replaces the channels of the environment file; empty: use the file's."""
    exclude_newer: Date | None = None
    """Ignore packages uploaded after this date, so that a new solve returns the same lock;
    ``month``: since the month of locking began. None: use all."""
    prefix: Line = "/opt/conda"
    """Where the environment is in the image; with the base's Python by default ``/opt/env``."""
    post_link: dict[Line, Literal["skip"]] = Field(default_factory=dict)
    """``NAME: skip`` accepts a package although its link script does not run. The engine
    ``layered`` refuses all other packages that have one."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_absolute(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if not value.startswith("/") or ".." in value.split("/") or prefix in _SYSTEM_FOLDERS:
            rule = "must be an absolute path outside the system's folders, such as /opt/conda"
            raise ValueError(rule)
        return prefix


class Pip(Model):
    """Options of the pip packages. They are added to those of the environment file."""

    index_url: Line | None = None
    """The package index; None: the environment file's, or PyPI."""
    extra_index_urls: tuple[Line, ...] = ()
    """Additional package indexes."""
    find_links: tuple[Line, ...] = ()
    """Folders and pages with wheels."""
    fallback: Literal["pip"] | None = None
    """Used when ``index_url`` does not answer; ``pip``: the indexes of pip's own configuration."""
    exclude_newer: Date | None = None
    """Ignore files uploaded after this date. Works only with indexes that publish upload times;
    from others uv takes nothing. ``month``: as for conda. None: use all."""
    build: dict[PackageName, WheelBuild] = Field(default_factory=dict)
    """How wheels of source packages are built, by package."""


class Files(Model):
    """Files to copy into the image.

    From a folder, the output of tools and of builder is omitted, what looks like a secret, and what
    ``.builderignore`` lists."""

    source: Line
    """A file or folder, relative to the project folder."""
    target: Line
    """Absolute path in the image."""
    mode: Line | None = None
    """Octal permissions of files, such as ``"0755"``; None: those of the source."""


class Registry(Model):
    """Where the image is published."""

    host: Line = ""
    """Host name, with a port if needed."""
    repository: Line = ""
    """Path of the repository on the host."""
    tags: tuple[Line, ...] = ("latest", "%y.%m")
    """Tags, also strftime patterns: ``%y.%m`` makes a dated tag."""
    reuse: bool | Line = False
    """Take layers that the cache lacks from the published image, or from the image of a reference.
    Whoever may push there decides what they contain. A project with a policy reuses signed images
    without this key.
    """


_LAYERS = LayerOptions()


class Layers(Model):
    """How packages become layers. The defaults work with Docker 20.10 and later."""

    compression: Compression = _LAYERS.compression
    """Compression of the layers; Docker 20.10 reads only ``gzip``."""
    own_layer_from: Annotated[int, Field(ge=1)] = _LAYERS.own_layer_from
    """A package gets its own layer when its archive has at least this many bytes."""
    groups: Annotated[int, Field(ge=1, le=64)] = _LAYERS.groups
    """Number of layers for the small packages of one package manager; the name selects the
    layer.
    """

    @property
    def options(self) -> LayerOptions:
        """The validated options as a frozen value for :mod:`builder.formats.layers`."""
        return LayerOptions(**self.model_dump())


class Recipe(Model):
    """One target, with everything that its recipe extends.

    A field is a key of the recipe file: ``builder help schema recipe`` describes each.
    """

    name: TargetName
    """The target's name; default: the file's."""
    description: str = ""
    """One line for people."""
    group: tuple[Line, ...] = ()
    """Publish groups of the target: group ``ml`` is published by ``publish.py --ml``."""
    base: Line
    """``docker://``, ``oci:DIR[:TAG]``, ``docker-archive:FILE``,
    ``debian:SUITE`` or ``sif:FILE``."""
    base_packages: tuple[Line, ...] = ()
    """Packages of apt to add to a base of Debian or Ubuntu: NAME, NAME=VERSION or
    NAME:ARCHITECTURE.
    """
    lock: Line | None = None
    """A lock file that another tool wrote, relative to the project folder. One of conda-lock 1 to 4
    is used unchanged. From others, ``uv.lock``, ``pixi.lock``, ``pylock.toml``, requirements with
    hashes and lists with ``@EXPLICIT``, builder makes its own lock, with the same packages. None:
    builder solves."""
    environment: Annotated[Line, Field(validate_default=True)] = ""
    """The file that names the packages, relative to the project folder: a conda environment file,
    ``pyproject.toml``, ``pixi.toml`` or pip's requirements. Not needed with ``lock``."""
    groups: tuple[Line, ...] = ()
    """Groups of packages for the image: categories of conda-lock, dependency groups and extras of
    uv, ``pylock.toml`` and ``pyproject.toml``. Empty: ``main``, which are the packages without a
    group."""
    python: Python = "conda"
    """Where Python comes from: ``conda``: a package of the channels; ``base``: the base image, in a
    virtual environment with pip packages alone; ``base-with-packages``: the same, and it sees the
    base's packages."""
    lock_environment: Line | None = None
    """The environment of a ``pixi.lock`` or ``pixi.toml``; None: ``default``."""
    platform: Platform = "linux-64"
    """The processor and system of the target machine, with conda's name."""
    gpu: Gpu = empty()
    """The GPUs that the image is for."""
    virtual_packages: VirtualPackages = Field(default_factory=dict)
    """Virtual packages of the target machine and their versions: ``__cuda``, ``__glibc``,
    ``__linux``.
    """
    conda: Conda = empty()
    """Options of the conda packages."""
    pip: Pip = empty()
    """Options of the pip packages."""
    files: tuple[Files, ...] = ()
    """Files to copy into the image."""
    steps: tuple[Step, ...] = ()
    """Commands that run in the image while it is built, in order. Those before the first one with
    ``files: true`` are below the recipe's ``files:``."""
    env: dict[Variable, Line] = Field(default_factory=dict)
    """Environment variables of the image."""
    entrypoint: tuple[Line, ...] | None = None
    """Replaces builder's entry point, which runs its arguments in the environment. None: use
    builder's.
    """
    cmd: tuple[Line, ...] = ("python",)
    """Default command of the image."""
    workdir: Line = "/"
    """Working directory of the image."""
    labels: dict[Line, Line] = Field(default_factory=dict)
    """Labels in the image's config."""
    annotations: dict[Line, str] = Field(default_factory=dict)
    """Annotations in the image's manifest, such as ``org.opencontainers.image.source``."""
    registry: Registry = empty()
    """Where the image is published."""
    layers: Layers = empty()
    """How packages become layers."""
    bytecode: Bytecode = "all"
    """Which Python modules of the packages are compiled: ``all``, or ``none``: each process
    compiles what it imports, again and again."""
    format: Format = "oci"
    """What the target machine runs: an OCI image (docker, podman-hpc) or a SIF (singularity,
    apptainer).
    """
    sif: SifOptions = empty()
    """How a SIF is laid out."""
    smoke: SmokeTest = empty()
    """What the smoke test does; by default the lock decides."""
    engine: Engine = "layered"
    """Default engine; ``--engine`` overrides it."""
    site: Site = empty()
    """The target machine: container runtime, scheduler, node, network."""
    source: Path = Path()
    """The recipe's file."""
    root: Path = Path()
    """The project folder, which contains ``recipes/``."""

    @model_validator(mode="before")
    @classmethod
    def _prefix_of_base_python(cls, data: Any) -> Any:
        """Avoid ``/opt/conda``, where many bases have the Python that the environment would hide."""
        if not isinstance(data, dict) or data.get("python", "conda") == "conda":
            return data
        conda = data.get("conda") or {}
        return {**data, "conda": {"prefix": _VENV, **conda}} if isinstance(conda, dict) else data

    @model_validator(mode="after")
    def _format_fits_site(self) -> Recipe:
        if self.format == "sif" and self.site.runtime.family == "plugin":
            kind = self.site.runtime.kind
            rule = f"jobs with {kind} run a squashfs, made of an OCI image; write 'oci'"
            raise ValueError(f"format: sif: {rule}")
        return self

    @field_validator("env")
    @classmethod
    def _env_is_complete(cls, env: dict[str, str]) -> dict[str, str]:
        """Refuse ``PATH: /app:$PATH``: unlike with Docker, the image would have the text ``$PATH``."""
        for name, value in env.items():
            if f"${name}" in value or f"${{{name}}}" in value:
                rule = "is not replaced by its value here: write the whole value"
                raise ValueError(f"{name}: ${name} {rule}")
        return env

    @field_validator("environment")
    @classmethod
    def _names_packages(cls, value: str, info: ValidationInfo) -> str:
        if not value and not info.data.get("lock"):
            raise PydanticCustomError("missing", "Field required")
        return value

    @property
    def uses_base_python(self) -> bool:
        """Whether the image's Python is the base's."""
        return self.python != "conda"

    @property
    def environment_path(self) -> Path:
        """The environment file. With ``lock`` it need not exist; without ``environment`` it cannot.

        :class:`builder.lock.inputs.Inputs` has its content.
        """
        return self.root / (self.environment or _NO_FILE)

    @property
    def imported_lock(self) -> Path | None:
        """The lock file of another tool from which builder makes its own; None if there is none."""
        return self.root / self.lock if self.lock and not self.uses_lock_unchanged else None

    @property
    def uses_lock_unchanged(self) -> bool:
        """Whether the target's lock file is one of conda-lock, which builder does not write."""
        return self.lock is not None and self.lock.endswith(_CONDA_LOCK_SUFFIXES)

    @property
    def lock_path(self) -> Path:
        """The lock file that images are built from.

        It is the recipe's ``lock`` if that is used unchanged, else ``<stem>.<target>.lock.yml`` in
        the folder of the lock of another tool, or of the environment file.
        """
        path = self.root / (self.lock or self.environment)
        if self.uses_lock_unchanged:
            return path
        stem = path.stem if path.suffix in _STEM_SUFFIXES else path.name
        path = path.with_name(f"{stem}.{self.name}.lock.yml")
        if path.is_symlink():
            check_inside(path, (self.root,), "a symlink", f"remove the link: rm {path}")
        return path

    @property
    def architecture(self) -> str:
        """The OCI name of the platform's processor."""
        return {"linux-64": "amd64", "linux-aarch64": "arm64"}[self.platform]

    @property
    def site_title(self) -> str:
        """The name of the site for messages: its title, or the target's name."""
        return self.site.title or self.name


def recipe_files(root: Path) -> dict[str, Path]:
    """Return the target names and their files in ``root/recipes``."""
    files = yaml_files(own_path(root, "recipes"))
    return {name: path for name, path in files.items() if not name.startswith("_")}


def recipe_groups(root: Path) -> set[str]:
    """Return the publish groups that the recipes in ``root/recipes`` name with ``group``.

    Raises:
        ConfigError: a recipe is not valid YAML.
    """
    names: set[str] = set()
    for path in recipe_files(root).values():
        found = load_yaml(path).data.get("group")
        found = [found] if isinstance(found, str) else found
        if isinstance(found, list):  # anything else is an error when the recipe is loaded
            names.update(g for g in found if isinstance(g, str) and _GROUP.fullmatch(g))
    return names


def load_recipe(name: str, root: Path) -> Recipe:
    """Read, merge and validate the recipe of a target.

    Args:
        name: the target.
        root: the project folder.

    Raises:
        ConfigError: the target does not exist (the hint lists similar names), or a file is invalid
            (the message names file, line and key).
    """
    files = recipe_files(root)
    if name not in files:
        known = f"known targets: {', '.join(files) or 'none: builder init writes one'}"
        hint = near_hint(Path(name).stem, list(files)) or known
        if name == ".":  # docker build .
            hint = f"leave out the dot: builder build; {known}"
        raise ConfigError(f"no target named {name!r} in {root / 'recipes'}", hint)

    own_path(root, "sites")  # no file of a folder of the project is a link out of it
    yamls = load_chain(name, yaml_files(root / "recipes"), "target")
    return recipe_from(name, yamls, files[name], root)


def recipe_from(name: str, yamls: list[YamlFile], source: Path, root: Path) -> Recipe:
    """Merge a recipe, those that it extends and its site file, and validate the result.

    Args:
        name: the target.
        yamls: the recipe's file, then those that it extends.
        source: the recipe's file, for messages.
        root: the project folder.

    Raises:
        ConfigError: a key is wrong; the message names file, line and key.
    """
    for yaml in yamls:
        _check_version(yaml)
    site, site_keys, named_in = site_of(yamls)
    log.info("recipe %s (site: %s)", source, site or "none")
    data: dict[str, Any] = {}
    site_yamls: list[YamlFile] = []
    if site:
        data, site_yamls = load_site(site, root, named_in.where("site") if named_in else "")
    for yaml in reversed(yamls):
        inherited = () if yaml is yamls[0] else _NOT_INHERITED
        data = merge(data, {k: v for k, v in yaml.data.items() if k not in (*inherited, *_OF_FILE)})
    if site_keys:
        data = merge(data, {"site": site_keys})
    data.setdefault("name", name)
    merged = {**data, "source": source, "root": root}
    recipe = validated(Recipe, merged, [*yamls, *site_yamls])
    _check_files(recipe, yamls)
    return recipe


def _check_files(recipe: Recipe, yamls: list[YamlFile]) -> None:
    """Raise ConfigError for an environment file or a lock outside of the project."""
    for key, value in (("lock", recipe.lock), ("environment", recipe.environment)):
        if value:
            named_in = next((yaml for yaml in yamls if key in yaml.data), yamls[0])
            check_inside(recipe.root / value, (recipe.root,), f"{named_in.where(key)}: {key}")


def _check_version(yaml: YamlFile) -> None:
    """Raise ConfigError for a file in a newer format, before any of its other keys is refused."""
    version = yaml.data.get("version", FORMAT_VERSION)
    if version is True or version != FORMAT_VERSION:
        found = f"{yaml.where('version')}: version: {str(version)[:40]}"
        hint = f"upgrade builder (this is {__version__}), or write version: {FORMAT_VERSION}"
        raise ConfigError(f"{found}: this builder reads version {FORMAT_VERSION}", hint)
