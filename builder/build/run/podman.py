"""podman, and podman-hpc of NERSC, which is based on it, through their command lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from builder.core.errors import RunnerError
from builder.core.model import Image
from builder.core.progress import Reporter, working
from builder.core.store.files import write_atomic
from builder.core.store.temporary import temporary_folder, temporary_name
from builder.core.store.walk import remove_tree
from builder.core.workspace import Workspace
from builder.formats.oci.layout import write_layout
from builder.lock.config.site import GpuVendor

from .base import CHANGED_IMAGE, SHM_SIZE, RunOptions
from .failures import hint_for
from .gpu import gpu_devices
from .leftovers import REPOSITORY, is_left_behind
from .process import Completed, execute, reason
from .storage import EngineRunner, Storage, container_name

_LAYOUT_TAG = "image"
_PAUSE_PROCESSES = ("podman pause", "catatonit")
_PLAIN_FOLDER = Path("/tmp")  # noqa: S108


class PodmanRunner(EngineRunner):
    """Runs images with podman, which loads missing images until the process ends.

    As root or rootless, with podman's own configuration (CONTAINERS_CONF ...).
    """

    name = "podman"
    forbidden = ',"\n'

    def available(self) -> str | None:
        if not shutil.which(self.name):
            return "not installed"
        done = execute([self.name, "info", "--format", "{{.Host.OCIRuntime.Name}}"], timeout_s=30)
        return None if done.returncode == 0 else f"does not work: {reason(done)}"

    @contextlib.contextmanager
    def storage(self) -> Iterator[PodmanStorage]:
        yield PodmanStorage(self.name, self._work)

    def _run(self, image: Image, command: Sequence[str], options: RunOptions) -> Completed:
        name, changes = container_name(), options.changes
        run = [self.name, "run", *(["--rm"] if changes is None else []), "--name", name]
        run += ["--pull", "never", *_arguments(options), *self.gpu_options(options.gpu)]
        variables_of_run = variable_options(options.env, self._work.settings.tmpdir)
        with self.storage() as storage, variables_of_run as (variables, environ):
            image_id = storage.provide(image)
            ended = False
            try:
                # without "--", podman-hpc takes --help, --gpu and "--" of the command for its own
                done = options.execute([*run, *variables, "--", image_id, *command], environ)
                ended = changes is None and not done.timed_out
                self._check_started(done)
                if changes is not None and done.returncode == 0:
                    self._save(storage, name, changes / CHANGED_IMAGE)
            finally:
                if not ended:  # the container is no child of podman and outlives it
                    storage.remove_container(name)
        return done

    def _save(self, storage: PodmanStorage, container: str, archive: Path) -> None:
        committed = f"{storage.host}{REPOSITORY}:{temporary_name()}"
        try:
            self._must([self.name, "commit", "--quiet", container, committed])
            save = [self.name, "save", "--format", "docker-archive", "--output", str(archive)]
            self._must([*save, committed])
        finally:
            remove([self.name, "rmi", "--ignore", committed], self._work.reporter)

    def _must(self, command: Sequence[str]) -> None:
        done = execute(command)
        if done.returncode:
            raise _error(self.name, f"{self.name} {command[1]} failed: {reason(done)}")

    def gpu_options(self, gpu: GpuVendor) -> list[str]:
        """Return options that make the host's GPUs available in a container."""
        devices = gpu_devices(gpu)
        if gpu == "amd" and devices:
            return [*(f"--device={device}" for device in devices), "--group-add=keep-groups"]
        return ["--device=nvidia.com/gpu=all"] if devices else []

    def _check_started(self, done: Completed) -> None:
        """Raise RunnerError if podman itself failed, and not the command in the container."""
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
        if done.returncode == 125 or (done.returncode in (126, 127) and errors):
            message = errors[-1] if errors else reason(done)
            raise _error(self.name, f"{self.name} could not run the image: {message}")


class PodmanHpcRunner(PodmanRunner):
    """Runs images with podman-hpc: podman with the storage and the GPUs of an HPC site.

    An image that was not migrated (squashed for all nodes) before is loaded into the storage of
    this node.
    """

    name = "podman-hpc"

    def gpu_options(self, gpu: GpuVendor) -> list[str]:
        if gpu == "nvidia" and gpu_devices(gpu):
            return ["--gpu"]
        return super().gpu_options(gpu)


class PodmanStorage(Storage):
    """The storage of podman or podman-hpc."""

    host = "localhost/"

    def __init__(self, program: str, work: Workspace) -> None:
        self.program = program
        self._work = work
        self._environ = dict(os.environ)  # podman's storage at this time

    def image_id(self, image: Image) -> str:
        return image.config_descriptor.digest.partition(":")[2]

    def names(self, image_id: str) -> list[str] | None:
        if self.program == "podman-hpc" and f"sha256:{image_id}" in migrated_ids(self.program):
            return []  # in a storage that only ``run`` sees
        done = self._execute("image", "inspect", "--format", "{{json .RepoTags}}", image_id)
        if done.returncode:
            return None
        try:
            return list(json.loads(done.stdout) or ())
        except ValueError:
            return []

    def id_of(self, name: str) -> str:
        done = self._execute("image", "inspect", "--format", "{{.Id}}", name)
        return "" if done.returncode else done.stdout.strip()

    def load(self, image: Image, name: str) -> str:
        layout = temporary_layout(image, self._work)
        with (
            working(self._work.reporter, f"loading the image into {self.program}"),
            layout as reference,
        ):
            # `podman-hpc pull` would also make a squashfs of the image; `image pull` does not
            done = execute([self.program, "image", "pull", "--quiet", reference])
        if done.returncode:
            message = f"{self.program} could not load the image: {reason(done)}"
            raise _error(self.program, message)
        image_id = done.stdout.strip().splitlines()[-1]
        self.tag(image_id, name)
        # podman 4 names the image by the layout's path, podman 5 by the tag in the layout
        ours = (name, f"{self.host}{REPOSITORY}:")
        others = [other for other in self.names(image_id) or () if not other.startswith(ours)]
        if others:
            self._execute("untag", image_id, *others)
        return image_id

    def tag(self, image_id: str, name: str) -> bool:
        return self._execute("tag", image_id, name).returncode == 0

    def remove_image(self, name: str) -> None:
        remove([self.program, "rmi", name], self._work.reporter, self._environ)

    def remove_container(self, name: str) -> None:
        command = [self.program, "rm", "--force", "--time", "1", "--ignore", name]
        remove(command, self._work.reporter)

    def own_containers(self) -> list[str]:
        return self._execute("ps", "--all", "--format", "{{.Names}}").stdout.split()

    def own_images(self) -> list[str]:
        return self._execute("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()

    def _execute(self, *words: str) -> Completed:
        return execute([self.program, *words], timeout_s=60)

    def remove_leftovers(self) -> None:
        super().remove_leftovers()
        for path in _PLAIN_FOLDER.glob("builder-blob-*"):
            with contextlib.suppress(OSError):
                if path.stat().st_uid == os.getuid() and is_left_behind(path.name):
                    remove_tree(path)


def remove(
    command: Sequence[str], reporter: Reporter, env: Mapping[str, str] | None = None
) -> None:
    """Run a command of podman that removes an image or a container, to its end; it may fail.

    With the driver vfs this takes minutes. podman first forgets an image and then deletes its
    layers. If it is killed, layers stay that none of its commands finds (podman 4.3); only loading
    and removing the same image again deletes them. Hence no time limit, and a new session: podman
    continues when Ctrl-C, a closed terminal or kill -9 ends builder.
    """
    null = subprocess.DEVNULL
    with working(reporter, f"removing what builder loaded into {command[0]}"):
        subprocess.Popen(command, env=env, stdout=null, stderr=null, start_new_session=True).wait()


@contextlib.contextmanager
def pause_process_ends() -> Iterator[None]:
    """End the pause process of rootless podman that the block starts, unless others need it.

    Every command but ``podman --version`` starts it, and it stays until the user logs out: it keeps
    the user namespace for later commands and containers (pkg/rootless of podman 4.3 to 6.1). If it
    has ended, podman starts another one.
    """
    before = _namespaces()
    yield
    for namespace, processes in _namespaces().items():
        is_alone = namespace not in before and len(processes) == 1 and os.geteuid()
        if is_alone and processes[0][1] in _PAUSE_PROCESSES:
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes[0][0], signal.SIGKILL)


def _namespaces() -> dict[str, list[tuple[int, str]]]:
    """Return numbers and names of this user's processes, by their user namespace."""
    found: dict[str, list[tuple[int, str]]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of another user, or ended
            if (process / "cmdline").read_bytes():
                entry = int(process.name), (process / "comm").read_text().strip()
                found.setdefault(str((process / "ns/user").readlink()), []).append(entry)
    return found


def _error(program: str, message: str) -> RunnerError:
    default = f"see {program} info, or see builder doctor"
    return RunnerError(message, hint_for(program, message) or default)


def migrated_ids(program: str) -> frozenset[str]:
    """Return the ids of the images in podman-hpc's read-only storage, which all nodes see.

    Of podman-hpc's commands only ``images`` and ``run`` look there: ``image exists`` and ``image
    inspect`` do not (podman-hpc 1.1.4).
    """
    format_ = ["--format", "{{.ReadOnly}} {{.ID}}"]
    done = execute([program, "images", "--no-trunc", *format_], timeout_s=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    return frozenset(words[1] for words in lines if len(words) == 2 and words[0] == "true")


def _arguments(options: RunOptions) -> list[str]:
    arguments = ["--network", options.network, "--shm-size", SHM_SIZE]
    arguments += ["--log-driver", "none"]  # an endless output would fill the disk
    if not options.capture:
        arguments.append("--interactive")
    for mount in options.mounts:
        mode = ",readonly" if mount.readonly else ""
        source = mount.source.absolute()
        arguments += ["--mount", f"type=bind,source={source},target={mount.target}{mode}"]
    if options.workdir is not None:
        arguments += ["--workdir", options.workdir]
    if options.entrypoint is not None:
        arguments += ["--entrypoint", json.dumps(list(options.entrypoint))]
    return arguments


@contextlib.contextmanager
def variable_options(
    env: Mapping[str, str], folder: Path
) -> Iterator[tuple[list[str], dict[str, str] | None]]:
    """Yield options that set variables in the container, and the environment of podman for them.

    Values may be secret, so they are never on a command line. They are in a file in ``folder`` that
    only this user can read. A file has one line per variable, so values of several lines are passed
    through podman's own environment.

    Raises:
        RunnerError: A name cannot be that of a variable.
    """
    for name in env:
        if not re.fullmatch(r"[^=\s#\0][^=\s\0]*", name):
            message = f"{name!r} is not a valid name of an environment variable"
            raise RunnerError(message, "correct it")
    if not env:
        yield [], None
        return

    one_line = {name: value for name, value in env.items() if "\n" not in value}
    rest = {name: value for name, value in env.items() if "\n" in value}
    with temporary_folder(folder, 0o700) as private:
        file = private / "env"
        text = "".join(f"{name}={value}\n" for name, value in one_line.items())
        write_atomic(file, text.encode(), mode=0o600)
        options = ["--env-file", str(file)]
        for name in rest:
            options += ["--env", name]
        yield options, {**os.environ, **rest} if rest else None


@contextlib.contextmanager
def temporary_layout(image: Image, work: Workspace) -> Iterator[str]:
    """Write the image into a temporary OCI layout, of hard links to the cache; yield its name.

    Raises:
        ImageError: A layer is not on this machine.
    """
    # podman 4.3 makes an image name of the path, and refuses capitals and names like .cache in it:
    # it gets a plain link. Other users can neither guess the name nor write in the folder, although
    # /tmp is shared.
    plain = _PLAIN_FOLDER / f"builder-{temporary_name()}"
    with temporary_folder(work.store.tmp, 0o700) as folder:
        write_layout(image, folder / "layout", _LAYOUT_TAG, work.store, durable=False)
        plain.mkdir(mode=0o700)
        try:
            (plain / "layout").symlink_to(folder / "layout")
            yield f"oci:{plain}/layout:{_LAYOUT_TAG}"
        finally:
            remove_tree(plain)
