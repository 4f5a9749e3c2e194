"""What ``builder services up`` starts: its options, and the stack that they ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.oci.reference import local_name
from builder.services.state import PORTS, ExternalStore, Stack, check_keys
from builder.site.arguments import parse_bind
from builder.site.images import image_reference
from builder.site.shell import ShellText

#: The target of the servers' image.
SERVERS = "services"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of ``builder services up``; None, or empty: as the last time."""

    engine: str
    image: str
    servers_image: str
    workers: int | None
    gpus: int | None
    ports: tuple[str, ...]
    binds: tuple[str, ...]
    scrape: tuple[str, ...]
    hosts: tuple[str, ...]
    s3: str
    s3_keys: str
    s3_bucket: str
    s3_region: str


def planned(recipe: Recipe, options: UpOptions, name: str, before: Stack | None) -> Stack:
    """The stack that the options ask for; what they leave out is as in the one before.

    Raises:
        UsageError: an option is not valid, or the target's site has no docker.
    """
    runtime = recipe.site.runtime
    if runtime.kind not in ("docker", "podman", "userns") and not options.engine:
        raise UsageError(
            f"{recipe.name}: its site runs containers with {runtime.kind}, the servers need docker or podman",
            "choose another target, or name a program: --engine docker",
        )
    engine = options.engine or (runtime.command if runtime.kind in ("docker", "podman") else "docker")
    store = before.s3 if before else None
    if options.s3:
        if not options.s3_keys:
            raise UsageError("--s3 needs the keys of the store", "--s3-keys FILE")
        store = check_keys(
            ExternalStore(options.s3.rstrip("/"), options.s3_keys, options.s3_bucket, options.s3_region)
        )
    elif options.s3_keys:
        raise UsageError("--s3-keys needs the address of the store", "--s3 https://HOST:PORT")
    gpus = options.gpus if options.gpus is not None else recipe.site.node.gpus
    if recipe.gpu.vendor == "none":
        gpus = 0
    binds = tuple(parse_bind(bind, volumes=True) for bind in options.binds)
    texts = tuple(bind if isinstance(bind, ShellText) else bind.replace("$", "$$") for bind in binds)
    same = before if before is not None and before.target == recipe.name else None
    workers = options.workers or (same.workers if same and options.gpus is None else max(gpus, 1))
    if gpus > workers:
        raise UsageError(
            f"--workers {workers}: fewer than the {gpus} GPUs, and each worker has one GPU",
            f"--workers {gpus}, or --gpus {workers}",
        )
    return Stack(
        name=name,
        target=recipe.name,
        image=options.image or image_name(recipe),
        servers_image=options.servers_image or local_name(SERVERS),
        engine=engine,
        ports={**PORTS, **(before.ports if before else {}), **_ports(options.ports)},
        workers=workers,
        gpus=gpus,
        s3=store,
        scrape=options.scrape or (before.scrape if before else ()),
        hosts=options.hosts or (before.hosts if before else ()),
        binds=texts or (before.binds if before else ()),
        user=os.getuid(),
    )


def image_name(recipe: Recipe) -> str:
    """The name of a target's image in the engine."""
    if recipe.registry.repository and not recipe.site.runtime.takes_sif:
        return image_reference(recipe)
    return local_name(recipe.name)


def _ports(values: tuple[str, ...]) -> Mapping[str, int]:
    """Reads ``SERVICE=PORT``.

    Raises:
        UsageError: another form, service or number.
    """
    found = {}
    for value in values:
        service, _, port = value.partition("=")
        if service not in PORTS:
            raise UsageError(f"--port {value}: no such service", f"SERVICE is one of {', '.join(PORTS)}")
        if not port.isascii() or not port.isdigit() or not 1024 <= int(port) <= 65535:
            raise UsageError(
                f"--port {value}: not a port from 1024 to 65535", f"--port {service}={PORTS[service]}"
            )
        found[service] = int(port)
    return found
