"""The model of a site file, see :mod:`builder.lock.config.sites`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from .explain import config_error
from .fields import Line, Model
from .recipe import Engine, Format, Gpu, Platform, SifOptions
from .site import Site
from .sites import load_site_from


class SiteFile(Model):
    """A machine: what recipes for it share."""

    base: Line | None = None
    """The base image of recipes that name none."""
    platform: Platform = "linux-64"
    """The processor and system of the machine, with conda's name."""
    gpu: Gpu = Gpu()
    """The GPUs of the machine."""
    virtual_packages: dict[Line, Line] = Field(default_factory=dict)
    """Virtual packages of the machine and their versions: ``__cuda``, ``__glibc``, ``__linux``."""
    format: Format = "oci"
    """What the machine runs: an OCI image (docker, podman-hpc) or a SIF (singularity,
    apptainer).
    """
    sif: SifOptions = SifOptions()
    """How a SIF is laid out."""
    engine: Engine = "layered"
    """Default engine; ``--engine`` overrides it."""
    site: Site = Site()
    """The machine: container runtime, scheduler, node, network."""


def read_site(name: str, files: Mapping[str, Path]) -> SiteFile:
    """Read, merge and validate a site file.

    Args:
        name: the site.
        files: all site files, :func:`builder.lock.config.sites.all_site_files`.

    Raises:
        ConfigError: a file is invalid; the message names file, line and key.
    """
    data, yamls = load_site_from(name, files)
    try:
        return SiteFile.model_validate(data)
    except ValidationError as e:
        raise config_error(e, yamls, SiteFile) from None
