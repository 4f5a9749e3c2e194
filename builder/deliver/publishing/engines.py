"""Container engines that pull a published image into their storage, with builder's credentials."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from builder.build.run.podman import migrated_ids
from builder.build.run.process import execute
from builder.core.errors import BuilderError, RunnerError, UsageError
from builder.core.progress import working
from builder.core.settings import Settings
from builder.core.store.files import space_errors, write_atomic
from builder.core.store.temporary import temporary_folder
from builder.core.workspace import Workspace
from builder.deliver.pulled import Pull
from builder.formats.oci.manifest import parse_manifest
from builder.lock.config.policy import has_policy

from .destination import PublishDestination, RegistryDestination
from .pull import Pulled, PulledTarget, reference_of, resolve_published

EngineName = Literal["podman-hpc", "podman"]


def pull_into(
    engine: EngineName,
    wanted: PulledTarget,
    origin: PublishDestination,
    tag: str,
    work: Workspace,
    *,
    if_changed: bool = False,
) -> tuple[Pulled, Pull]:
    """Have a container engine pull the image of a tag.

    podman-hpc pulls it by its digest, and migrates it. Where a policy has verified the image, it is
    pulled by its digest too: the tag may move until then.

    Args:
        engine: the engine whose storage receives the image. podman-hpc makes a squashfs file of it,
            in a storage that all nodes see.
        wanted: the target's recipe, or any image.
        origin: where it was published.
        tag: a tag or a digest.
        work: a temporary file with the credentials is in the ``tmpdir`` of its settings.
        if_changed: do nothing if the engine already has the registry's image under this name.

    Returns:
        What was pulled, and the record of it for ``run`` and ``job``.

    Raises:
        RunnerError: the engine is not installed, cannot pull, or did not migrate the image.
        UsageError: ``origin`` is an OCI layout, or the target runs a SIF.
        RegistryError, ImageError: see :func:`builder.deliver.publishing.pull.pull`.
    """
    if not isinstance(origin, RegistryDestination):
        hint = "leave out --load: the image goes into dist/"
        raise UsageError(f"--load {engine} needs a registry, not {origin.name}", hint)
    where = reference_of(origin, tag)
    _check(engine, wanted)
    described, layer = resolve_published(wanted, origin, tag)
    if layer is not None:
        raise UsageError(f"{where} is a SIF, which {engine} does not run", "leave out --load")
    manifest = parse_manifest(origin.manifest(described), described, where)
    image_id = str(manifest["config"]["digest"])
    made = Pull(where, reference_of(origin, described.digest), engine, image_id)
    verified = wanted.root is not None and has_policy(wanted.root)
    name = made.image if engine == "podman-hpc" or verified else where
    is_current = _has(made, name)
    if not is_current or not if_changed:
        with working(work.reporter, f"{engine} pulls {name}"):
            _pull(engine, origin, name, work.settings)
        if not _has(made, name):
            raise _other_image(made, origin, name)
    place = f"{engine}:{name}"
    return Pulled(wanted.name, where, described.digest, not is_current, place), made


def _check(engine: EngineName, wanted: PulledTarget) -> None:
    """Check that an engine is installed, and runs images of this format.

    Raises:
        RunnerError: it is not installed.
        UsageError: the target runs a SIF.
    """
    if wanted.format == "sif":
        hint = "leave out --load: the SIF is a file"
        raise UsageError(f"target {wanted.name} runs a SIF, which {engine} does not", hint)
    if shutil.which(engine) is None:
        hint = "pull on a machine that has it, or leave out --load"
        raise RunnerError(f"{engine} is not installed here", hint)


def _has(made: Pull, name: str) -> bool:
    """Return whether an engine has this image, podman-hpc where all nodes see it.

    Args:
        made: the pull. Some engines report the digest of the config, others that of the manifest.
        name: the image's name at the pull.
    """
    if made.engine == "podman-hpc":
        return made.image_id in migrated_ids(made.engine)
    done = execute([made.engine, "image", "inspect", name])
    if done.returncode:
        return False
    value: dict[str, Any] = json.loads(done.stdout)[0]
    own_id = str(value.get("Id", "")).removeprefix("sha256:")
    digests = [str(text).rpartition("@")[2] for text in value.get("RepoDigests") or ()]
    return bool({f"sha256:{own_id}", *digests} & {made.image_id, made.image.partition("@")[2]})


def _other_image(made: Pull, origin: RegistryDestination, name: str) -> BuilderError:
    """Return the error for a pull that ended well, and after which the image is not there."""
    if made.engine == "podman-hpc":  # podman-hpc ends with 0 although the migration failed
        return RunnerError(
            f"podman-hpc pulled {name}, but compute nodes do not see it: it was not migrated",
            f"podman-hpc migrate {made.image_id.partition(':')[2][:12]}",
        )
    return origin.client.error(
        f"the engine pulled another image than {made.image}, which {name} was before the pull",
        "the tag has moved: pull again",
    )


def _pull(engine: EngineName, origin: RegistryDestination, name: str, settings: Settings) -> None:
    tls = ["--tls-verify=false"] if origin.client.scheme == "http" else []
    with _auth_file(origin, settings) as env:
        done = execute([engine, "pull", *tls, name], env={**os.environ, **env})
    if done.returncode:
        raise RunnerError(
            f"{engine} could not pull {name}: {done.stderr.strip()[-500:]}",
            f"does {engine} work? {engine} info",
        )


@contextmanager
def _auth_file(origin: RegistryDestination, settings: Settings) -> Iterator[dict[str, str]]:
    """Yield variables with which podman uses these credentials: they name a temporary file.

    Only this user can read it.
    """
    credentials = origin.client.credentials(origin.repository)
    if not credentials.username:
        yield {}
        return
    with space_errors(settings.tmpdir), temporary_folder(settings.tmpdir, 0o700) as folder:
        path = folder / "auth.json"
        auth = {"auth": credentials.basic.removeprefix("Basic ")}
        data = json.dumps({"auths": {origin.client.host: auth}})
        write_atomic(path, data.encode(), 0o600)
        yield {"REGISTRY_AUTH_FILE": str(path)}
