"""Builds a published image again from what is attached to it, and compares the two.

The inputs are the lock, and the recipe in the provenance; the recipe's ``files:`` and local sources
are the project's. The cache is empty and private, so nothing that an earlier build stored decides.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from builder.build.engines.dispatch import find_engine, run_engine
from builder.build.engines.layered import FILES_TITLE
from builder.build.steps.recipe import recipe_steps
from builder.core.errors import BuilderError, ConfigError, ImageError, SpaceError
from builder.core.model import Image
from builder.core.redact import redact
from builder.core.stages import BuildOptions
from builder.core.store.folders import CacheFolders
from builder.core.store.temporary import temporary_folder
from builder.core.version import __version__
from builder.core.workspace import Workspace
from builder.deliver.history import layers_by_name
from builder.deliver.project import Project
from builder.formats.oci.digest import sha256
from builder.lock.config.explain import first_problem
from builder.lock.config.recipe import Recipe, load_recipe
from builder.lock.inputs import Inputs
from builder.lock.urls import recipe_urls

from .published import described_image
from .testers import Release

_GIVEN = ("org.opencontainers.image.source", "org.opencontainers.image.revision")
#: Digests and sizes of layers and config, whose differences are shown otherwise.
_DERIVED = re.compile(r"manifest\.(config|layers\[\d+\])\.(digest|size)")


@dataclass(frozen=True, slots=True)
class Difference:
    """A layer, or a value of config or manifest, that differs."""

    name: str
    """The name of a layer (:func:`builder.deliver.history.layers_by_name`), or the
    path of a value: ``config.Env[3]``."""
    expected: str
    """The published digest or value; empty: it is not in the published image."""
    found: str
    """The same of the rebuilt image."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild."""

    expected: str
    """The digest of the published manifest. For a SIF it is that of the artifact, which has the
    SIF's own as a layer."""
    found: str
    """The digest of the rebuilt one; empty: it could not be built."""
    layers: tuple[Difference, ...] = ()
    config: tuple[Difference, ...] = ()
    """Values of the config, and of the manifest apart from its layers."""
    problem: str = ""
    """Why it could not be built; empty: it was built."""
    causes: tuple[str, ...] = ()
    """Likely causes of a difference or of the problem."""

    @property
    def equal(self) -> bool:
        return self.found == self.expected

    def to_json(self) -> dict[str, Any]:
        """Return the result for ``--json``."""
        return {**asdict(self), "equal": self.equal}


def rebuild(
    published: Image, lock: bytes, provenance: bytes, root: Path, work: Workspace
) -> Rebuilt:
    """Build a published image again, and compare the two.

    Args:
        published: its manifest and config; the files of layers are not needed, see
            :func:`builder.deliver.publishing.published.read_published`.
        lock: the attached lock, whose signature the caller has verified.
        provenance: the attached provenance, whose signature the caller has verified.
        root: the project folder, with the recipe's ``files:`` and local sources.
        work: its cache receives the private cache, which is removed at the end, and nothing else.

    Raises:
        SpaceError: the disk is full.
    """
    expected = published.digest
    inputs = None
    try:
        inputs = _Inputs.read(provenance, root)
        with temporary_folder(CacheFolders(work.settings.cache).tmp, 0o700) as folder:
            image = _build(inputs, published, lock, work, folder)
    except SpaceError:
        raise
    except BuilderError as e:
        causes = tuple(inputs.causes(lock)) if inputs else ()
        return Rebuilt(expected, "", problem=e.message, causes=causes)
    if image.digest == expected:
        return Rebuilt(expected, expected)
    layers = _differences(_layers(published), _layers(image))
    names = [layer.name for layer in layers]
    config = _differences(*(_values(one, unpacked=not layers) for one in (published, image)))
    causes = tuple(inputs.causes(lock, names))
    return Rebuilt(expected, image.digest, layers, config, causes=causes)


@dataclass(frozen=True)
class _Inputs:
    """What a provenance of :func:`builder.deliver.publishing.attest.provenance` says about a
    build."""

    recipe: Recipe
    engine: str
    epoch: int
    lock: str
    """The digest of the lock file, which credentials were not yet removed from."""
    requested: frozenset[str]
    version: str

    @classmethod
    def read(cls, provenance: bytes, root: Path) -> _Inputs:
        """Return the inputs; raise ImageError if this is no provenance that builder reads."""
        try:
            predicate = json.loads(provenance)["predicate"]
            definition = predicate["buildDefinition"]
            given, own = definition["externalParameters"], definition["internalParameters"]
            digests = {d["name"]: d.get("digest", {}) for d in definition["resolvedDependencies"]}
            place = {"source": Path("recipe of the provenance"), "root": root}
            return cls(
                Recipe.model_validate({**given["recipe"], **place}),
                str(given["engine"]),
                int(own["SOURCE_DATE_EPOCH"]),
                f"sha256:{digests['lock']['sha256']}",
                frozenset(own["requested"]),
                str(predicate["runDetails"]["builder"]["version"]["builder"]),
            )
        except ValidationError as e:
            what = f"the recipe of the attached provenance: {first_problem(e)[1]}"
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            what = "the attached provenance is damaged, or not one of builder's"
        raise ImageError(what)

    def causes(self, lock: bytes, names: Collection[str] = ()) -> Iterator[str]:
        """Yield likely causes; ``names``: of the layers that differ."""
        if self.version != __version__:
            yield f"it was built with builder {self.version}; this is builder {__version__}"
        if sha256(lock) != self.lock:
            yield "credentials of URLs are not in the attached lock"
        if FILES_TITLE in names and self.recipe.files:
            sources = ", ".join(item.source for item in self.recipe.files)
            yield f"files of the project changed, or others are there: {sources}"
        for step in itertools.chain(*recipe_steps(self.recipe)):
            if f"step: {step.name}" in names:
                why = "uses the network" if step.network else "writes other files each time"
                yield f"the step {step.name!r} {why}, or a layer below it differs"


def _build(inputs: _Inputs, published: Image, lock: bytes, work: Workspace, folder: Path) -> Image:
    """Return the image that the inputs become, with an empty cache in ``folder``."""
    recipe = inputs.recipe
    if inputs.engine != "layered":
        raise ImageError(f"the engine {inputs.engine} makes other bytes each time")
    try:
        own = Inputs.read(recipe)
    except ConfigError:  # the project has another file by now; the lock has what was in it
        own = Inputs.read(recipe.model_copy(update={"environment": ""}))
    _require_known_variables(recipe)
    settings = replace(work.settings, cache=folder / "cache", epoch=inputs.epoch)
    path = folder / "conda-lock.yml"
    path.write_bytes(lock)
    notes = json.loads(published.manifest).get("annotations") or {}
    annotations = {name: notes[name] for name in _GIVEN if name in notes}
    options = BuildOptions(path, annotations=annotations, download_base=recipe.format != "oci")
    request = Project(recipe.root, Workspace.of(settings, work.reporter)).request(own, options)
    locked = replace(request.lock, digest=inputs.lock)  # an annotation
    request = replace(request, lock=locked, requested=inputs.requested)
    return Release(run_engine(find_engine("layered"), request), annotations).image


def _require_known_variables(recipe: Recipe) -> None:
    """Refuse to send variables of this machine to hosts that the project itself does not name."""
    own: set[str] = set()
    with contextlib.suppress(ConfigError):  # there is no such target any more
        own = _with_variables(load_recipe(recipe.name, recipe.root))
    for url in sorted(_with_variables(recipe) - own):
        raise ImageError(f"recipe {recipe.name} of this project does not name {url}")


def _with_variables(recipe: Recipe) -> set[str]:
    """Return the URLs of a recipe that contain environment variables, as a provenance has them."""
    return {redact(url) for url in recipe_urls(recipe) if url and "$" in url}


def _layers(image: Image) -> dict[str, str]:
    """Return the digests of the layers by name; the second layer of a name is ``NAME (2)``."""
    described = described_image(
        image.manifest, image.manifest_descriptor, lambda _: image.config, image.digest
    )
    return {
        f"{name} ({number})" if number > 1 else name: digest
        for name, digests in layers_by_name(described.layers).items()
        for number, digest in enumerate(digests, 1)
    }


def _values(image: Image, *, unpacked: bool) -> dict[str, str]:
    """Return all values of config and manifest by their paths.

    The digests of layers and config are left out; so are those of unpacked layers if not
    ``unpacked``.
    """
    value = {**json.loads(image.config), "manifest": json.loads(image.manifest)}
    if not unpacked:
        value.pop("rootfs", None)
    return {path: text for path, text in _flat(value) if not _DERIVED.match(path)}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of all values in JSON."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _flat(item, f"{path}[{number}]")
    else:
        yield path, str(value)


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    names = [n for n in dict.fromkeys([*before, *after]) if before.get(n) != after.get(n)]
    return tuple(Difference(name, before.get(name, ""), after.get(name, "")) for name in names)
