"""The apptainer engine: a definition file over builder's image, for apptainer or singularity.

The command runs through spython's ``run_command``. spython's ``Client.build`` would hide failures:
after a failed build it returns None, or the file of an earlier build. Here a failure is an error
with apptainer's last lines.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder.build.run.apptainer import apptainer_problem, find_apptainer
from builder.build.run.failures import hint_for
from builder.build.run.process import execute, tail
from builder.core.datafiles import script
from builder.core.errors import ImageError
from builder.core.model import Image, SifImage
from builder.core.settings import Settings
from builder.core.store.files import require_space, sha256_file, space_errors
from builder.core.store.subordinate import ranges
from builder.core.store.temporary import temporary_folder
from builder.formats.net.urlvariables import is_own
from builder.formats.oci.layout import write_layout
from builder.formats.sif.singularity import Metadata

from .base import BuildRequest, BuildResult, Clock, cached_sif
from .layered import make_layers

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
        stack = make_layers(request, clock)
        if stack.base.sif is not None:
            raise ImageError(
                f"apptainer build takes OCI images, and the base {request.recipe.base} is a SIF",
                "build with --engine layered, or use a base from docker:// or oci:",
            )
        image = stack.image()
        clock.mark("image")
        size = sum(layer.unpacked or layer.descriptor.size for layer in image.layers)
        what = f"building target {request.recipe.name} with apptainer"
        require_space(request.work.settings.tmpdir, size, what)
        parent = request.work.store.tmp  # where files can be hard links to the cache's blobs
        with space_errors(parent), temporary_folder(parent, 0o700) as folder:
            write_layout(image, folder / "image", None, request.work.store, durable=False)
            (folder / "image.def").write_text(definition(request, image, str(folder / "image")))
            built = run_build(folder / "image.def", folder / "image.sif", request)
            path = cached_sif(request, self.name)
            with space_errors(path.parent):
                built.replace(path)
            path.chmod(0o755)
        architecture = request.recipe.architecture
        sif = SifImage(path, sha256_file(path), path.stat().st_size, architecture)
        clock.mark("apptainer build")
        notes = stack.packages.notes
        if request.recipe.sif.layout == "layered":
            notes += ("apptainer builds flat SIFs; sif.layout: layered needs the engine layered",)
        # in the copy for the user, the path of the temporary folder is relative
        shown = definition(request, image, "image")
        result = stack.result(sif, clock)
        return replace(result, engine=self.name, notes=notes, definition=("def", shown))


# the input of apptainer ---------------------------------------------------------------------------


def definition(request: BuildRequest, image: Image, layout: str) -> str:
    """Return the definition file.

    Args:
        request: The build.
        image: The image with all layers.
        layout: The folder of its OCI layout.

    Raises:
        ImageError: A line of a section would begin another section.
    """
    metadata = Metadata(json.loads(image.config), image.digest)
    labels = {name: " ".join(value.split()) for name, value in metadata.labels.items() if value}
    sections = {
        # the same lines as in the SIFs that builder writes itself
        "environment": metadata.environment.split("\n")[2:-1],
        "runscript": metadata.runscript.split("\n")[2:-1],
        "labels": [f"{name} {value}" for name, value in labels.items()],
    }
    name, texts = request.recipe.name, {}
    for section, lines in sections.items():
        if wrong := next((line for line in lines if line.lstrip().startswith("%")), None):
            raise ImageError(
                f"target {name}: %{section} of the definition file would have the line {wrong!r}, "
                "which begins a section",
                "remove it from the variables and labels of recipe and base, "
                "or build with --engine layered",
            )
        texts[section] = "".join(f"    {line}\n" for line in lines)
    return script(__file__, "definition.txt", name=name, layout=layout, **texts)


# running apptainer --------------------------------------------------------------------------------


def run_build(source: Path, image: Path, request: BuildRequest) -> Path:
    """Build a definition file and return ``image``.

    Raises:
        ImageError: See :func:`check_built`.
    """
    from spython.utils import run_command

    tool = find_apptainer() or "apptainer"
    with space_errors(request.work.settings.tmpdir):
        request.work.settings.tmpdir.mkdir(parents=True, exist_ok=True)
    command = [tool, "build", *_options(tool, request), str(image), str(source)]
    done = run_command(command, quiet=True, environ=dict(environment(request.work.settings)))
    plain = (re.sub(r"\x1b\[[0-9;]*m", "", text) for text in done["message"])
    lines = list(dict.fromkeys(line for text in plain for line in text.splitlines()))
    check_built(request, "apptainer", lines, image, done["return_code"])
    return image


def check_built(
    request: BuildRequest, engine: str, lines: Sequence[str], image: Path, code: int
) -> None:
    """Check that a program has built an image.

    Args:
        request: what was built.
        engine: the name of the program.
        lines: its output.
        image: the file that it has to write.
        code: its exit code.

    Raises:
        ImageError: it failed, or ended with 0 and wrote no file.
    """
    if code == 0 and image.is_file():
        return
    problem = f"ended with code {code}{'' if code else ' but wrote no file'}"
    message = f"{engine} build of target {request.recipe.name} {problem}:\n{tail(lines)}"
    raise ImageError(message, hint_for(f"{engine} build", "\n".join(lines)))


def environment(settings: Settings) -> Mapping[str, str]:
    """Return this environment, with builder's temporary folder for apptainer unless it has one.

    It is without builder's own variables, such as REGISTRY_PASSWORD: cotainr passes it to the
    programs of the packages that it installs.
    """
    names = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR")
    env = {name: value for name, value in os.environ.items() if not is_own(name)}
    if any(env.get(name) for name in names):
        return env
    return {**dict.fromkeys(names, str(settings.tmpdir)), **env}


def _options(tool: str, request: BuildRequest) -> list[str]:
    options = []
    # Apptainer maps ids automatically for ordinary users. SingularityCE needs the option, and so
    # does root in a container that lacks capabilities.
    is_root = os.geteuid() == 0
    is_apptainer = Path(tool).resolve().name == "apptainer"
    if ranges(Path("/etc/subuid")) if is_root else not is_apptainer:
        options.append("--fakeroot")
    if "--mksquashfs-args" in execute([tool, "build", "--help"], timeout_s=30).stdout:
        options += ["--mksquashfs-args", _COMPRESSION[request.recipe.sif.compression]]
    return options
