"""Recipes: one YAML file per target, read into a frozen, checked model.

A recipe may say ``extends: NAME`` to start from another one; mappings are merged key by key, anything else is replaced. A file
whose name begins with ``_`` is no target, but may be extended.
"""

from __future__ import annotations

import difflib
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from builder.config.site import Site
from builder.config.yamlfile import YamlFile, load_yaml
from builder.errors import ConfigError

#: A date or time of ISO 8601; YAML makes a date of it where it has no quotes.
Date = Annotated[str, BeforeValidator(lambda value: value.isoformat() if isinstance(value, date) else value)]
GpuVendor = Literal["nvidia", "amd", "none"]
Compression = Literal["gzip", "zstd"]
Engine = Literal["layered", "docker", "apptainer", "cotainr"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(Model):
    """What the image computes on. ``architectures`` as torch names them: ``sm_80``, ``gfx90a``."""

    vendor: GpuVendor = "none"
    architectures: tuple[str, ...] = ()


class Conda(Model):
    """Options of the conda part.

    ``channels`` replaces the environment file's; ``fallback`` names what takes over when no channel answers
    (``debian``: the Debian channel); ``exclude_newer`` (a date) makes the same solve come out again.
    """

    channels: tuple[str, ...] = ()
    fallback: Literal["debian"] | None = None
    exclude_newer: Date | None = None
    prefix: str = "/opt/conda"
    post_link: dict[str, Literal["skip"]] = Field(default_factory=dict)
    """Packages whose post-link script may be left out (nothing is run in a layered build); others that have one are refused."""

    @field_validator("prefix")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if (
            not value.startswith("/")
            or ".." in value.split("/")
            or value.rstrip("/") in ("", "/usr", "/bin", "/lib")
        ):
            raise ValueError("must be an absolute path of its own, such as /opt/conda")
        return value.rstrip("/")


class Pip(Model):
    """Options of the pip part, added to those of the environment file.

    ``fallback: pip`` uses what pip's own configuration offers when ``index_url`` does not answer. ``exclude_newer`` (a date) is
    for indexes that say when a file was uploaded: from any other, uv then takes nothing.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    fallback: Literal["pip"] | None = None
    exclude_newer: Date | None = None


class Files(Model):
    """Files to copy into the image: ``source`` relative to the recipe's project folder."""

    source: str
    target: str
    mode: str | None = None


class Registry(Model):
    """Where the image is published: ``host/repository`` and the tags (strftime patterns allowed)."""

    host: str = ""
    repository: str = ""
    tags: tuple[str, ...] = ("latest", "%y.%m")


class Layers(Model):
    """How packages become layers. The defaults suit Docker 20.10 and everything newer."""

    compression: Compression = "gzip"
    own_layer_from: Annotated[int, Field(ge=1)] = 4 << 20
    """A package whose archive has at least this many bytes gets a layer of its own."""
    groups: Annotated[int, Field(ge=1, le=64)] = 12
    """How many groups the small packages of one manager are dealt into, by name."""


class Sif(Model):
    """How a SIF is laid out, where the target takes one.

    ``flat``: one squashfs, which every runtime mounts; ``layered``: the base's squashfs as it is and the packages as overlay
    partitions above it, which Apptainer 1.4 and SingularityCE 4 mount, and which costs only what has changed.
    """

    layout: Literal["flat", "layered"] = "flat"
    compression: Compression = "zstd"
    """Of the squashfs pieces; ``gzip`` for hosts whose kernel or squashfuse knows no zstd."""


class Installer(Model):
    """What installs the locked packages inside the image, with an engine that runs an installer there (docker, apptainer)."""

    program: Literal["micromamba", "rattler"] | None = None
    """None: micromamba where it can be had, else rattler, which comes with builder."""
    micromamba: str = "docker://docker.io/mambaorg/micromamba:2.3.3"
    """Where micromamba is: an image that holds it (``docker://``, ``oci:DIR``), or a file, relative to the project folder."""


class Cotainr(Model):
    """Options of the engine cotainr."""

    system: str | None = None
    """A system that the site's cotainr knows (``--system``); its base image takes the place of the recipe's."""


class Recipe(Model):
    """One target, resolved."""

    name: str
    description: str = ""
    group: tuple[str, ...] = ()
    """The publish groups this target belongs to: ``--ml`` and ``--gui`` are such names."""
    base: str
    """``docker://``, ``oci:DIR[:TAG]``, ``oci-archive:FILE``, ``docker-archive:FILE``, ``debian:SUITE`` or ``sif:FILE``."""
    base_packages: tuple[str, ...] = ()
    """Debian packages to add to a ``debian:SUITE`` base."""
    environment: str
    """The conda environment file, relative to the project folder."""
    lock: str | None = None
    """A lock file made elsewhere (conda-lock 1 to 4), relative to the project folder; it is used as it is."""
    platform: Literal["linux-64", "linux-aarch64"] = "linux-64"
    gpu: Gpu = Gpu()
    virtual_packages: dict[str, str] = Field(default_factory=dict)
    """``__cuda``, ``__glibc``, ``__linux`` ... and their versions on the target machine."""
    conda: Conda = Conda()
    pip: Pip = Pip()
    files: tuple[Files, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    """Replaces builder's entry point, which execs its arguments in the environment."""
    cmd: tuple[str, ...] = ("python",)
    workdir: str = "/"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    """Added to the manifest: ``org.opencontainers.image.source`` and the like."""
    registry: Registry = Registry()
    layers: Layers = Layers()
    format: Literal["oci", "sif"] = "oci"
    """What the target's machine runs: an OCI image (docker, podman-hpc) or a SIF (singularity, apptainer)."""
    sif: Sif = Sif()
    engine: Engine = "layered"
    """What builds it, unless ``--engine`` says otherwise."""
    installer: Installer = Installer()
    cotainr: Cotainr = Cotainr()
    site: Site = Site()
    """The machine that the target is for: runtime, scheduler, node, network."""
    source: Path = Path()
    """The recipe's file."""
    root: Path = Path()
    """The project folder: the one that holds ``recipes/``."""

    @property
    def environment_path(self) -> Path:
        return self.root / self.environment

    @property
    def lock_path(self) -> Path:
        """The recipe's ``lock``, or ``<environment stem>.<target>.lock.yml`` beside the environment file."""
        if self.lock:
            return self.root / self.lock
        path = self.environment_path
        return path.with_name(f"{path.name.removesuffix('.yml').removesuffix('.yaml')}.{self.name}.lock.yml")

    @property
    def architecture(self) -> str:
        """The OCI name of the platform's processor."""
        return {"linux-64": "amd64", "linux-aarch64": "arm64"}[self.platform]


def recipe_files(root: Path) -> dict[str, Path]:
    """Target names and their files in ``root/recipes``."""
    return {name: path for name, path in _files(root).items() if not name.startswith("_")}


def _files(root: Path) -> dict[str, Path]:
    return {p.stem: p for p in sorted((root / "recipes").glob("*.y*ml")) if not p.name.startswith(".")}


def load_recipe(name: str, root: Path) -> Recipe:
    """Reads, merges and checks the recipe of target ``name``.

    Raises:
        ConfigError: no such target (the nearest names are offered), or a wrong file: file, line and key are named.
    """
    files = recipe_files(root)
    if name not in files:
        near = difflib.get_close_matches(name, files, n=3, cutoff=0.5)
        raise ConfigError(
            f"no target named {name!r} in {root / 'recipes'}",
            f"did you mean {' or '.join(near)}?" if near else f"known targets: {', '.join(files) or 'none'}",
        )
    data, yamls = _merged(name, _files(root), ())
    data.setdefault("name", name)
    try:
        return Recipe.model_validate({**data, "source": files[name], "root": root})
    except ValidationError as e:
        raise _explain(e, yamls) from None


def _merged(
    name: str, files: dict[str, Path], seen: tuple[str, ...]
) -> tuple[dict[str, Any], list[YamlFile]]:
    """The data of a recipe and of all it extends, and their files: the recipe's first."""
    yaml = load_yaml(files[name])
    data = dict(yaml.data)
    parent = data.pop("extends", None)
    if parent is None:
        return data, [yaml]
    if parent not in files or parent in (*seen, name):
        why = "extends itself" if parent in files else f"extends {parent!r}, which does not exist"
        raise ConfigError(
            f"{yaml.where('extends')}: target {name} {why}", f"known targets: {', '.join(files)}"
        )
    below, yamls = _merged(parent, files, (*seen, name))
    for own in ("name", "description", "group"):
        below.pop(own, None)
    return _overlay(below, data), [yaml, *yamls]


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = _overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _explain(error: ValidationError, yamls: list[YamlFile]) -> ConfigError:
    lines = []
    for item in error.errors():
        keys = _own_keys(item["loc"])
        dotted = ".".join(str(k) for k in keys)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            known = _known_keys(keys[:-1])
            near = difflib.get_close_matches(str(keys[-1]), known, n=1)
            message = (
                f"unknown key; did you mean {near[0]}?"
                if near
                else f"unknown key; known here: {', '.join(known)}"
            )
        elif item["type"] == "missing":
            message = "this key is needed"
        elif item["loc"] and item["loc"][-1] == "[key]" and item["type"] == "literal_error":
            message = f"unknown key; known here: {(item.get('ctx') or {}).get('expected', '')}"
        lines.append(f"{_where(keys, yamls)}: {dotted}: {message}")
    return ConfigError("\n".join(lines), "correct the recipe; docs/recipes.md lists every key")


def _own_keys(location: tuple[Any, ...]) -> tuple[Any, ...]:
    """A place in the data without what pydantic adds for the keys of mappings."""
    return tuple(k for k in location if k != "[key]")


def _where(keys: tuple[Any, ...], yamls: list[YamlFile]) -> str:
    """The file and line that hold a key: of the recipe, or of one that it extends."""
    for at in (keys[:n] for n in range(len(keys), 0, -1)):
        for yaml in yamls:
            if at in yaml.lines:
                return yaml.where(*at)
    return yamls[0].where()


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    kind: Any = Recipe
    for key in path:
        fields = getattr(kind, "model_fields", None)
        if fields is not None and key in fields:
            kind = _without_none(fields[key].annotation)
        elif get_origin(kind) in (dict, tuple):
            kind = _without_none(next(a for a in reversed(get_args(kind)) if a is not ...))
        else:
            return []
    return [k for k in getattr(kind, "model_fields", {}) if k not in ("source", "root")]


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _without_none(next(a for a in get_args(annotation) if a is not type(None)))
    return annotation
