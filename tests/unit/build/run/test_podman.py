"""podman's command line."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from builder.build.run import podman
from builder.build.run.base import RunOptions
from builder.build.run.leftovers import remove_loaded
from builder.build.run.podman import PodmanHpcRunner, PodmanRunner, variable_options
from builder.core.errors import RunnerError
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.support.image_kit import settings
from tests.support.images import make_layer, make_test_image
from tests.support.waiting import until


def test_variable_options(tmp_path: Path) -> None:
    """Variables are in a private file, and those of several lines in podman's environment."""
    with variable_options({"TOKEN": "s3cret, $x 'y'", "KEY": "-----BEGIN\nline", "EMPTY": ""}, tmp_path) as (
        options,
        environ,
    ):
        file = Path(options[1])
        assert options == ["--env-file", str(file), "--env", "KEY"]
        assert file.read_text() == "TOKEN=s3cret, $x 'y'\nEMPTY=\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert environ is not None and environ["PATH"] == os.environ["PATH"]
        assert environ["KEY"] == "-----BEGIN\nline"
    assert not list(tmp_path.iterdir())
    with variable_options({}, tmp_path) as (options, environ):
        assert options == [] and environ is None
    with pytest.raises(RunnerError, match="'A B'"), variable_options({"A B": "1"}, tmp_path):
        pass


def test_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = PodmanRunner(Workspace(settings(tmp_path), Store(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runner.available() == "not installed"
    (tmp_path / "podman").write_text("#!/bin/sh\necho 'Error: no cgroups' >&2\nexit 125\n")
    (tmp_path / "podman").chmod(0o755)
    assert runner.available() == "does not work: Error: no cgroups"


PODMAN_HPC = """\
#!/bin/sh
printf '%s\\n' "$*" >> "{log}"
case "$1 $2" in
"info --format") echo runc ;;
"image inspect") [ -e "{log}.loaded" ] || exit 125; echo '["localhost/tmp/layout:image"]' ;;
"image pull") touch "{log}.loaded"; echo {image} ;;
"run --rm") echo hello ;;
esac
"""


def test_podman_hpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """podman-hpc loads without squashing the image, passes GPUs by --gpu, and leaves no image."""
    image = make_test_image([make_layer(tmp_path, "a")])
    image_id = image.config_descriptor.digest.removeprefix("sha256:")
    log = tmp_path / "log"
    program = tmp_path / "podman-hpc"
    program.write_text(PODMAN_HPC.format(log=log, image=image_id))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(podman, "gpu_devices", lambda vendor: [Path("/dev/nvidia0")])
    runner = PodmanHpcRunner(Workspace(settings(tmp_path), Store(tmp_path / "cache")))
    assert runner.available() is None
    done = runner.run(image, ["true"], RunOptions(gpu="nvidia", timeout_s=20))
    assert done.stdout == "hello\n"
    lines = log.read_text().splitlines()
    (run,) = [line for line in lines if line.startswith("run ")]
    assert " --gpu " in run and run.endswith(f"{image_id} true") and "NVIDIA_VISIBLE_DEVICES" not in run
    assert any(line.startswith("image pull --quiet oci:") for line in lines)
    assert f"untag {image_id} localhost/tmp/layout:image" in lines
    (tag,) = [line for line in lines if line.startswith(f"tag {image_id} localhost/builder-run:")]
    runner.run(image, ["true"])
    assert sum(line.startswith("image pull") for line in log.read_text().splitlines()) == 1
    remove_loaded()
    assert log.read_text().splitlines()[-1] == f"rmi {tag.split()[-1]}"


SLOW_RMI = """\
#!/bin/sh
touch {folder}/started
while [ ! -e {folder}/go ]; do sleep 0.05; done
touch {folder}/removed
"""
REMOVE = """\
import sys
from builder.cli.leave import leave
from builder.core.progress import QUIET
from builder.build.run.leftovers import remember
from builder.build.run.podman import remove

remember("podman", "digest", "id", lambda: remove([sys.argv[1], "rmi", "name"], QUIET))
leave(5)
"""


def test_interrupted_removal(tmp_path: Path) -> None:
    """Ctrl-C ends builder with its own exit code, and podman removes the image to its end.

    A podman that is killed leaves layers without an image.
    """
    program = tmp_path / "podman"
    program.write_text(SLOW_RMI.format(folder=tmp_path))
    program.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-c", REMOVE, str(program)])
    until((tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 5
    (tmp_path / "go").touch()
    until((tmp_path / "removed").exists)
