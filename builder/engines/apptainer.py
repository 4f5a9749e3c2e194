"""The apptainer engine: a definition file that installs the lock in ``%post``, built by apptainer or
singularity.

The command runs through spython's ``run_command``. spython's ``Client.build`` would hide failures: after a
failed build it returns None, or the file of an earlier build. Here a failure is an error with apptainer's
last lines.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.bases.image import BaseImage
from builder.engines.base import BuildRequest, BuildResult, Clock
from builder.engines.bundle import PLACE, make_bundle
from builder.engines.folders import build_folder, cached_sif
from builder.engines.prepare import InstallInputs, prepare_install
from builder.errors import ImageError
from builder.image.config import redacted
from builder.image.files import ENTRYPOINT
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, SifImage, canonical_json
from builder.net.urlvariables import is_own
from builder.oci.layout import write_layout
from builder.run.apptainer import apptainer_problem, find_apptainer
from builder.run.process import execute, tail
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.sif.singularity import environment_script, run_script
from builder.store.files import require_space, sha256_file, space_errors
from builder.store.subordinate import ranges

_COMPRESSION = {"zstd": "-comp zstd -Xcompression-level 3", "gzip": "-comp gzip"}


class Apptainer:
    """Builds SIFs with apptainer, or else with singularity."""

    name = "apptainer"
    formats = frozenset({"sif"})
    repeatable = False

    def available(self) -> str | None:
        return apptainer_problem()

    def build(self, request: BuildRequest) -> BuildResult:
        clock = Clock()
        inputs = prepare_install(request, clock)
        bundle = make_bundle(request, inputs)
        clock.mark("bundle")
        require_space(
            request.settings.tmpdir, 4 * bundle.size, f"building target {request.recipe.name} with apptainer"
        )
        with build_folder(request) as folder:
            bundle.write(folder / "bundle")
            assert inputs.files.path is not None
            shutil.copyfile(inputs.files.path, folder / "bundle" / "files.tar.gz")
            agent, source = write_base(inputs.base, folder / "base", request)
            text = definition(request, inputs, (agent, source), f"{folder}/bundle")
            (folder / "image.def").write_text(text)
            clock.mark("context")
            built = run_build(folder / "image.def", folder / "image.sif", request)
            sif = _move_to_cache(built, request, self.name)
        clock.mark("apptainer build")

        # in the copy for the user, paths of the temporary folder are relative
        shown_source = "base" if agent == "oci" else source
        shown = definition(request, inputs, (agent, shown_source), "bundle")
        notes = [f"{bundle.installer} installed the conda packages, pip the wheels"]
        if request.recipe.sif.layout == "layered":
            notes.append("apptainer builds flat SIFs; sif.layout: layered needs the engine layered")
        return BuildResult(
            request.recipe,
            request.lock,
            inputs.locked_base,
            sif,
            engine=self.name,
            notes=tuple(notes),
            timings=clock.timings,
            definition=("def", shown),
        )


# the input of apptainer -------------------------------------------------------------------------------------


def write_base(base: BaseImage, folder: Path, request: BuildRequest) -> tuple[str, str]:
    """Writes the base where apptainer can read it: an OCI layout of hard links to the cache. A SIF is used as
    it is.

    Returns:
        Bootstrap agent and source, as in a definition file: ``oci`` and a folder, or ``localimage`` and a
        file.

    Raises:
        ImageError: The base is a SIF of several partitions, or one with OS packages.
    """
    if base.sif is not None:
        if base.added:
            raise ImageError(
                f"apptainer build cannot add OS packages to the SIF {base.reference}",
                "build with --engine layered, or use a base from docker:// or oci:",
            )
        if len(read_sif(base.sif.path).partitions) > 1:
            raise ImageError(
                f"the base {base.reference} has overlay partitions, which apptainer build ignores",
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
    image = Image(base.layers, config, described, manifest, Descriptor.of(OCI_MANIFEST, manifest))
    write_layout(image, folder, None, request.store, durable=False)
    return "oci", str(folder)


def definition(request: BuildRequest, inputs: InstallInputs, base: tuple[str, str], bundle: str) -> str:
    """Returns the definition file.

    Args:
        request: The build.
        inputs: Base and packages.
        base: Bootstrap agent and source, see :func:`write_base`.
        bundle: The folder of the install bundle on this host.

    Raises:
        ImageError: A line of a section would begin another section.
    """
    recipe = request.recipe
    entrypoint = (ENTRYPOINT,) if recipe.entrypoint is None else recipe.entrypoint
    labels = redacted(recipe.labels)
    labels |= {"org.builder.target": recipe.name, "org.builder.lock": request.lock.digest}
    sections = {
        "files": [f"{bundle} {PLACE}"],
        "post": [
            f"/bin/sh {PLACE}/install.sh",
            f"tar -xzf {PLACE}/files.tar.gz -C /",
            f"rm -rf {PLACE}",
        ],
        # the same lines as in the SIFs that builder writes itself
        "environment": environment_script(inputs.env).split("\n")[2:-1],
        "runscript": run_script(entrypoint, recipe.cmd).split("\n")[2:-1],
        "labels": [f"{name} {' '.join(value.split())}" for name, value in labels.items() if value],
    }
    head = [
        f"# Target {recipe.name}, written by builder for its apptainer engine (docs/engines.md).",
        "# The bundle holds the locked archives, so the build needs no network.",
        f"# base: {inputs.base.reference} {inputs.base.digest}",
        f"Bootstrap: {base[0]}",
        f"From: {base[1]}",
    ]
    parts = ["\n".join(head)]
    for name, lines in sections.items():
        if wrong := next((line for line in lines if line.lstrip().startswith("%")), None):
            raise ImageError(
                f"target {recipe.name}: %{name} of the definition file would have the line {wrong!r}, "
                "which begins a section",
                "remove it from the variables and labels of recipe and base, or build with --engine layered",
            )
        parts.append("\n".join([f"%{name}", *(f"    {line}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


# running apptainer ------------------------------------------------------------------------------------------


def run_build(source: Path, image: Path, request: BuildRequest) -> Path:
    """Builds a definition file and returns ``image``.

    Raises:
        ImageError: apptainer failed, or reported success and wrote no file.
    """
    from spython.utils import run_command

    tool = find_apptainer() or "apptainer"
    with space_errors(request.settings.tmpdir):
        request.settings.tmpdir.mkdir(parents=True, exist_ok=True)
    command = [tool, "build", *_options(tool, request), str(image), str(source)]
    done = run_command(command, quiet=True, environ=dict(environment(request.settings)))
    lines = [line for text in done["message"] for line in text.splitlines()]
    code = done["return_code"]
    if code == 0 and image.is_file():
        return image

    problem = f"ended with code {code}" if code else "reported success but wrote no file"
    fatal = [line for line in lines if re.search(r"\b(FATAL|ERROR)\b", line)]
    last_lines = tail(_without_colours([*lines, *fatal[-1:]]))
    raise ImageError(
        f"apptainer build of target {request.recipe.name} {problem}, {failed_step(lines)}:\n{last_lines}",
        _hint(lines),
    )


def environment(settings: Settings) -> Mapping[str, str]:
    """This process's environment, with builder's temporary folder for apptainer unless another one is set.

    It is without builder's own variables, such as REGISTRY_PASSWORD: cotainr passes it to the programs of
    the packages that it installs.
    """
    names = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")
    env = {name: value for name, value in os.environ.items() if not is_own(name)}
    if any(env.get(name) for name in names):
        return env
    return {**dict.fromkeys(names, str(settings.tmpdir)), **env}


def _options(tool: str, request: BuildRequest) -> list[str]:
    options = []
    # Apptainer maps ids automatically for ordinary users. SingularityCE needs the option, and so does root in
    # a container that lacks capabilities.
    is_root = os.geteuid() == 0
    is_apptainer = Path(tool).resolve().name == "apptainer"
    if ranges(Path("/etc/subuid")) if is_root else not is_apptainer:
        options.append("--fakeroot")
    if "--mksquashfs-args" in execute([tool, "build", "--help"], timeout_s=30).stdout:
        options += ["--mksquashfs-args", _COMPRESSION[request.recipe.sif.compression]]
    return options


def failed_step(lines: Sequence[str]) -> str:
    """Returns the part of the build that the last lines of output belong to, for an error message."""
    step = "before the base was unpacked"
    for line in lines:
        if "Running post scriptlet" in line:
            step = "in %post (installing the lock)"
        elif "Adding environment" in line or "Adding runscript" in line or "Adding labels" in line:
            step = "adding metadata"
        elif "Creating SIF file" in line:
            step = "writing the SIF"
        elif "Copying" in line and PLACE in line:
            step = "copying the install bundle (%files)"
    return step


def _without_colours(lines: Sequence[str]) -> list[str]:
    """The lines without escape sequences of a terminal, each once."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in dict.fromkeys(lines)]


def _hint(lines: Sequence[str]) -> str:
    text = "\n".join(lines).lower()
    if "subuid" in text or "fakeroot" in text:
        ids = "200000-265535"
        return f"assign subordinate ids to the user: usermod --add-subuids {ids} --add-subgids {ids} NAME"
    if "no space left" in text:
        return "free disk space, or choose a larger disk with --tmpdir / BUILDER_TMPDIR"
    return "the lines above are apptainer's; --engine layered writes the SIF without running anything"


def _move_to_cache(built: Path, request: BuildRequest, engine: str) -> SifImage:
    """Replaces the target's last SIF of this engine in the cache."""
    cached = cached_sif(request, engine)
    with space_errors(cached.parent):
        built.replace(cached)
    cached.chmod(0o755)
    return SifImage(cached, sha256_file(cached), cached.stat().st_size, request.recipe.architecture)
