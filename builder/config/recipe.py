"""Recipes: one YAML file per target, loaded into a frozen model.

A recipe can extend another one with ``extends: NAME``. Mappings are merged key by key; all other values are
replaced. A file whose name starts with ``_`` is not a target, but other recipes can extend it.
"""

from __future__ import annotations

import reprlib
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from builder.config.explain import config_error
from builder.config.fields import Line, Model, TargetName, Variable, VirtualPackage, VirtualVersion
from builder.config.site import Site
from builder.config.targetname import target_hint
from builder.config.yamlfile import YamlFile, load_yaml
from builder.errors import ConfigError

#: An ISO 8601 date or time. YAML turns an unquoted date into a date object, which is converted back to text.
Date = Annotated[str, BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else value)]
GpuVendor = Literal["nvidia", "amd", "none"]
Compression = Literal["gzip", "zstd"]
Engine = Literal["layered", "docker", "apptainer", "cotainr"]

#: Folders that cannot be the prefix of the conda environment.
_SYSTEM_FOLDERS = ("", "/usr", "/bin", "/lib")
#: Keys of a recipe that a recipe extending it does not inherit.
_NOT_INHERITED = ("name", "description", "group")


class Gpu(Model):
    """The GPU that the image is for."""

    vendor: GpuVendor = "none"
    architectures: tuple[Line, ...] = ()
    """As torch names them: ``sm_80``, ``gfx90a``."""


class Conda(Model):
    """Options of the conda packages."""

    channels: tuple[Line, ...] = ()
    """Replaces the channels of the environment file; empty: use the file's."""
    fallback: Literal["debian"] | None = None
    """Used when no channel answers; ``debian``: the Debian channel."""
    exclude_newer: Date | None = None
    """Ignore packages uploaded after this date, so that a new solve returns the same lock; None: use all."""
    prefix: Line = "/opt/conda"
    """Where the environment is in the image."""
    post_link: dict[Line, Literal["skip"]] = Field(default_factory=dict)
    """Packages whose post-link script can be skipped. The engine ``layered`` runs no scripts, so it refuses
    all other packages that have one."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_absolute(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if not value.startswith("/") or ".." in value.split("/") or prefix in _SYSTEM_FOLDERS:
            raise ValueError("must be an absolute path outside the system's folders, such as /opt/conda")
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
    """Ignore files uploaded after this date. Works only with indexes that publish upload times; from others
    uv takes nothing. None: use all."""


class Files(Model):
    """Files to copy into the image."""

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


class Layers(Model):
    """How packages become layers. The defaults work with Docker 20.10 and later."""

    compression: Compression = "gzip"
    own_layer_from: Annotated[int, Field(ge=1)] = 4 << 20
    """A package gets its own layer when its archive has at least this many bytes."""
    groups: Annotated[int, Field(ge=1, le=64)] = 12
    """Number of layers for the small packages of one package manager; the name selects the layer."""


class Sif(Model):
    """How a SIF is laid out.

    ``flat``: one squashfs, which every runtime mounts. ``layered``: the squashfs of the base unchanged, and
    the packages as overlay partitions above it. Rebuilding a layered SIF costs only what has changed;
    Apptainer 1.x and SingularityCE 3.6 and later mount it, unless their configuration disables overlays.
    """

    layout: Literal["flat", "layered"] = "flat"
    compression: Compression = "zstd"
    """Compression of the partitions; ``gzip`` for hosts whose kernel or squashfuse does not support zstd."""


class Installer(Model):
    """The program that installs packages inside the image, for the engines docker and apptainer."""

    program: Literal["micromamba", "rattler"] | None = None
    """None: micromamba if it is available, else rattler, which is part of builder."""
    micromamba: Line = "docker://docker.io/mambaorg/micromamba:2.3.3"
    """Where micromamba comes from: an image that contains it (``docker://``, ``oci:DIR``), or a file,
    relative to the project folder."""


class Cotainr(Model):
    """Options of the engine cotainr."""

    system: Line | None = None
    """A system of the site's cotainr configuration (``--system``); its base image replaces the recipe's.
    None: use the recipe's base."""


class Recipe(Model):
    """One target, with everything that its recipe extends."""

    name: TargetName
    description: str = ""
    group: tuple[Line, ...] = ()
    """Publish groups of the target: group ``ml`` is published by ``publish.py --ml``."""
    base: Line
    """``docker://``, ``oci:DIR[:TAG]``, ``oci-archive:FILE``, ``docker-archive:FILE``, ``debian:SUITE`` or
    ``sif:FILE``."""
    base_packages: tuple[Line, ...] = ()
    """Debian packages to add to a ``debian:SUITE`` base."""
    environment: Line
    """The conda environment file, relative to the project folder."""
    lock: Line | None = None
    """A lock file that another tool wrote (conda-lock 1 to 4), relative to the project folder. It is used
    unchanged. None: builder writes and updates its own."""
    platform: Literal["linux-64", "linux-aarch64"] = "linux-64"
    gpu: Gpu = Gpu()
    virtual_packages: dict[VirtualPackage, VirtualVersion] = Field(default_factory=dict)
    """Virtual packages of the target machine and their versions: ``__cuda``, ``__glibc``, ``__linux``."""
    conda: Conda = Conda()
    pip: Pip = Pip()
    files: tuple[Files, ...] = ()
    env: dict[Variable, Line] = Field(default_factory=dict)
    """Environment variables of the image."""
    entrypoint: tuple[Line, ...] | None = None
    """Replaces builder's entry point, which runs its arguments in the environment. None: use builder's."""
    cmd: tuple[Line, ...] = ("python",)
    """Default command of the image."""
    workdir: Line = "/"
    """Working directory of the image."""
    labels: dict[Line, Line] = Field(default_factory=dict)
    """Labels in the image's config."""
    annotations: dict[Line, str] = Field(default_factory=dict)
    """Annotations in the image's manifest, such as ``org.opencontainers.image.source``."""
    registry: Registry = Registry()
    layers: Layers = Layers()
    format: Literal["oci", "sif"] = "oci"
    """What the target machine runs: an OCI image (docker, podman-hpc) or a SIF (singularity, apptainer)."""
    sif: Sif = Sif()
    engine: Engine = "layered"
    """Default engine; ``--engine`` overrides it."""
    installer: Installer = Installer()
    cotainr: Cotainr = Cotainr()
    site: Site = Site()
    """The target machine: container runtime, scheduler, node, network."""
    source: Path = Path()
    """The recipe's file."""
    root: Path = Path()
    """The project folder, which contains ``recipes/``."""

    @field_validator("env")
    @classmethod
    def _env_is_complete(cls, env: dict[str, str]) -> dict[str, str]:
        """Docker's ``ENV PATH=/app:$PATH`` has no counterpart: the image would have the text ``$PATH``."""
        for name, value in env.items():
            if f"${name}" in value or f"${{{name}}}" in value:
                raise ValueError(f"{name}: ${name} is not replaced by its value here: write the whole value")
        return env

    @property
    def environment_path(self) -> Path:
        """The environment file."""
        return self.root / self.environment

    @property
    def lock_path(self) -> Path:
        """The recipe's ``lock``, or ``<environment stem>.<target>.lock.yml`` beside the environment file."""
        if self.lock:
            return self.root / self.lock
        path = self.environment_path
        stem = path.name.removesuffix(".yml").removesuffix(".yaml")
        return path.with_name(f"{stem}.{self.name}.lock.yml")

    @property
    def architecture(self) -> str:
        """The OCI name of the platform's processor."""
        return {"linux-64": "amd64", "linux-aarch64": "arm64"}[self.platform]

    @property
    def site_title(self) -> str:
        """The name of the site for messages: its title, or the target's name."""
        return self.site.title or self.name


def recipe_files(root: Path) -> dict[str, Path]:
    """Returns the target names and their files in ``root/recipes``."""
    return {name: path for name, path in _yaml_files(root).items() if not name.startswith("_")}


def _yaml_files(root: Path) -> dict[str, Path]:
    paths = sorted((root / "recipes").glob("*.y*ml"))
    return {path.stem: path for path in paths if not path.name.startswith(".")}


def load_recipe(name: str, root: Path) -> Recipe:
    """Reads, merges and validates the recipe of a target.

    Args:
        name: the target.
        root: the project folder.

    Raises:
        ConfigError: the target does not exist (the hint lists similar names), or a file is invalid (the
            message names file, line and key).
    """
    files = recipe_files(root)
    if name not in files:
        raise ConfigError(f"no target named {name!r} in {root / 'recipes'}", target_hint(name, files))

    data, yamls = _load_merged(name, _yaml_files(root), ())
    data.setdefault("name", name)
    try:
        return Recipe.model_validate({**data, "source": files[name], "root": root})
    except ValidationError as e:
        raise config_error(e, yamls, Recipe) from None


def _load_merged(
    name: str, files: dict[str, Path], children: tuple[str, ...]
) -> tuple[dict[str, Any], list[YamlFile]]:
    """Loads a recipe and everything that it extends.

    Args:
        name: the recipe.
        files: all recipe files by name.
        children: the recipes that extend this one, to detect cycles.

    Returns:
        The merged data, and the files: the recipe's own first.
    """
    yaml = load_yaml(files[name])
    data = dict(yaml.data)
    parent = data.pop("extends", None)
    if parent is None:
        return data, [yaml]

    if not isinstance(parent, str) or parent not in files:
        problem = f"extends {reprlib.repr(parent)}, which does not exist"
    else:
        problem = "extends itself" if parent in (*children, name) else ""
    if problem:
        raise ConfigError(
            f"{yaml.where('extends')}: target {name} {problem}", f"known targets: {', '.join(files)}"
        )
    inherited, yamls = _load_merged(parent, files, (*children, name))
    for key in _NOT_INHERITED:
        inherited.pop(key, None)
    return _merge(inherited, data), [yaml, *yamls]


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges mappings key by key; where both have another kind of value, the one of ``above`` wins."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged
