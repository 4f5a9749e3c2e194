"""The apptainer engine: a definition file that installs the lock in ``%post``, built by apptainer or singularity through spython.

spython hides failures: a build that failed gives None, or the file of an earlier build. Here the return code and the file are
looked at, and a failure is always an error with apptainer's last lines.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.bases.image import BaseImage
from builder.engines.base import BuildRequest, BuildResult, Clock, cached_sif
from builder.engines.kit import PLACE, build_folder, make_kit
from builder.engines.prepare import Prepared, prepare
from builder.errors import ImageError
from builder.image.files import ENTRYPOINT
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, LockedBase, SifImage, canonical_json
from builder.oci.layout import write_layout
from builder.run.process import execute, reason, tail
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.sif.singularity import environment_script, run_script
from builder.store.files import require_space, sha256_file, space_errors

_COMPRESSION = {"zstd": "-comp zstd -Xcompression-level 3", "gzip": "-comp gzip"}


class Apptainer:
    """Builds SIFs with apptainer, or singularity where that is installed."""

    name = "apptainer"
    formats = frozenset({"sif"})
    repeatable = False

    def available(self) -> str | None:
        """Whether apptainer or singularity is installed and runs."""
        tool = find_tool()
        if tool is None:
            return "neither apptainer nor singularity is installed"
        done = execute([tool, "version"], timeout_s=30)
        return None if done.returncode == 0 else f"{tool} does not work: {reason(done.stderr)}"

    def build(self, request: BuildRequest) -> BuildResult:
        clock = Clock()
        prepared = prepare(request, clock)
        kit = make_kit(request, prepared)
        clock.mark("kit")
        require_space(
            request.settings.tmpdir, 4 * kit.size, f"building target {request.recipe.name} with apptainer"
        )
        with build_folder(request) as folder:
            kit.write(folder / "kit")
            assert prepared.files.path is not None
            shutil.copyfile(prepared.files.path, folder / "kit" / "files.tar.gz")
            base = write_base(prepared.base, folder / "base", request)
            text = definition(request, prepared, (base[0], "base" if base[0] == "oci" else base[1]), "kit")
            (folder / "image.def").write_text(definition(request, prepared, base, f"{folder}/kit"))
            clock.mark("context")
            built = spython_build(folder / "image.def", folder / "image.sif", request)
            sif = keep_sif(built, request, self.name)
        clock.mark("apptainer build")
        notes = [f"installed by {kit.program}, wheels by pip"]
        if request.recipe.sif.layout == "layered":
            notes.append("apptainer makes flat SIFs; sif.layout: layered is for the engine layered")
        return BuildResult(
            request.recipe,
            request.lock,
            LockedBase(prepared.base.reference, prepared.base.digest),
            sif=sif,
            engine=self.name,
            notes=tuple(notes),
            timings=clock.timings,
            definition=("def", text),
        )


def find_tool() -> str | None:
    """The path of singularity or apptainer; spython and cotainr know the first name only."""
    return shutil.which("singularity") or shutil.which("apptainer")


def write_base(base: BaseImage, folder: Path, request: BuildRequest) -> tuple[str, str]:
    """Puts the base where apptainer can start from it: an OCI layout (hard links to the cache), or the SIF that it is.

    Gives the bootstrap agent and its source.

    Raises:
        ImageError: the base is a SIF of several partitions.
    """
    if base.sif is not None:
        if len(read_sif(base.sif.path).partitions) > 1:
            raise ImageError(
                f"the base {base.reference} has overlay partitions, which apptainer build leaves out",
                "make it flat (builder convert BASE.sif FLAT.sif), or build with --engine layered",
            )
        return "localimage", str(base.sif.path.absolute())
    config = canonical_json(base.config)
    described = Descriptor.of(OCI_CONFIG, config)
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": described.to_json(),
            "layers": [layer.descriptor.to_json() for layer in base.layers],
        }
    )
    write_layout(
        Image(base.layers, config, described, manifest, Descriptor.of(OCI_MANIFEST, manifest)),
        folder,
        None,
        request.store,
    )
    return "oci", str(folder)


def definition(request: BuildRequest, prepared: Prepared, base: tuple[str, str], kit: str) -> str:
    """The definition file. ``base`` is as :func:`write_base` gives it, ``kit`` a folder of the build host."""
    recipe = request.recipe
    entrypoint = (ENTRYPOINT,) if recipe.entrypoint is None else recipe.entrypoint
    labels = {**recipe.labels, "org.builder.target": recipe.name, "org.builder.lock": request.lock.digest}
    sections = {
        "files": [f"{kit} {PLACE}"],
        "post": [
            f"/bin/sh {PLACE}/install.sh",
            f"tar -xzf {PLACE}/files.tar.gz -C /",
            f"rm -rf {PLACE}",
        ],
        # the same lines as in the SIFs that builder writes itself
        "environment": environment_script(prepared.env).splitlines()[2:],
        "runscript": run_script(entrypoint, recipe.cmd).splitlines()[2:],
        "labels": [f"{name} {' '.join(value.split())}" for name, value in labels.items() if value],
    }
    head = [
        f"# Target {recipe.name}, made by builder for its apptainer engine (docs/engines.md). The kit holds the locked archives:",
        "# nothing needs a network.",
        f"# base: {prepared.base.reference} {prepared.base.digest}",
        f"Bootstrap: {base[0]}",
        f"From: {base[1]}",
    ]
    body = ["\n".join([f"%{name}", *(f"    {line}" for line in lines)]) for name, lines in sections.items()]
    return "\n\n".join(["\n".join(head), *body]) + "\n"


def spython_build(source: Path, image: Path, request: BuildRequest) -> Path:
    """Builds a definition file with spython's client, and believes neither it nor its silence.

    Raises:
        ImageError: apptainer failed, or said that it did not and left no file.
    """
    from spython.main import get_client
    from spython.utils import run_command

    tool = find_tool() or "singularity"
    with space_errors(request.settings.tmpdir):
        request.settings.tmpdir.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []

    def run(command: list[str], **options: Any) -> dict[str, Any]:
        # In the place of the method that Client.build calls and whose result it throws away.
        done: dict[str, Any] = run_command(
            [tool, *command[1:]], quiet=True, environ=environment(request.settings)
        )
        results.append(done)
        return done

    client = get_client(quiet=True)
    client._run_command = run
    client.build(str(source), str(image), sudo=False, options=_options(tool, request), quiet=True)
    code = results[-1]["return_code"] if results else None
    lines = [line for text in (results[-1]["message"] if results else []) for line in text.splitlines()]
    if code != 0 or not image.is_file():
        fatal = [line for line in lines if re.search(r"\b(FATAL|ERROR)\b", line)]
        what = f"ended with code {code}" if code else "said nothing of a failure, but left no file"
        raise ImageError(
            f"apptainer build of target {request.recipe.name} {what}, {step_of(lines)}:\n{tail(_plain([*lines, *fatal[-1:]]))}",
            _cure(lines),
        )
    return image


def environment(settings: Settings) -> Mapping[str, str]:
    """This process's environment, with the temporary folder under the names that apptainer and singularity know."""
    names = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")
    return {
        **({} if any(os.environ.get(n) for n in names) else dict.fromkeys(names, str(settings.tmpdir))),
        **os.environ,
    }


def _options(tool: str, request: BuildRequest) -> list[str]:
    # Apptainer maps ids by itself where an ordinary user builds; SingularityCE, and root that lacks capabilities, must be told
    options = []
    if _mapped() if os.geteuid() == 0 else Path(tool).resolve().name != "apptainer":
        options.append("--fakeroot")
    if "--mksquashfs-args" in execute([tool, "build", "--help"], timeout_s=30).stdout:
        options += ["--mksquashfs-args", _COMPRESSION[request.recipe.sif.compression]]
    return options


def _mapped() -> bool:
    """Whether this user has subordinate user ids: root in a container, without all capabilities, needs them as others do."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    try:
        lines = Path("/etc/subuid").read_text().splitlines()
    except OSError:
        return False
    return any(line.partition(":")[0] in (me, str(os.geteuid())) for line in lines)


def step_of(lines: list[str]) -> str:
    """Which part of the build the last lines belong to."""
    at = "before the base was unpacked"
    for line in lines:
        if "Running post scriptlet" in line:
            at = "in %post (installing the lock)"
        elif "Adding environment" in line or "Adding runscript" in line or "Adding labels" in line:
            at = "adding metadata"
        elif "Creating SIF file" in line:
            at = "writing the SIF"
        elif "Copying" in line and PLACE in line:
            at = "copying the locked archives (%files)"
    return at


def _plain(lines: list[str]) -> list[str]:
    """Without the colours of a terminal."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in dict.fromkeys(lines)]


def _cure(lines: list[str]) -> str:
    text = "\n".join(lines)
    if "subuid" in text or "fakeroot" in text.lower():
        return "give the user subordinate ids (usermod --add-subuids 200000-265535 --add-subgids 200000-265535 NAME)"
    if "no space left" in text.lower():
        return "free some room, or point --tmpdir / BUILDER_TMPDIR at a larger disk"
    return "the lines above are apptainer's own; --engine layered writes the SIF without running anything"


def keep_sif(built: Path, request: BuildRequest, engine: str) -> SifImage:
    """Moves a finished SIF into the cache, over the target's last one of this engine."""
    kept = cached_sif(request, engine)
    with space_errors(kept.parent):
        built.replace(kept)
    kept.chmod(0o755)
    return SifImage(kept, sha256_file(kept), kept.stat().st_size, request.recipe.architecture)
