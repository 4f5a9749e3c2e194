"""The image of target ``cpu`` under everything that runs images, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.build.run.base import Mount, RunOptions
from builder.build.run.select import find_runner
from builder.core.settings import Settings
from builder.core.workspace import Workspace
from builder.formats.net.pipconfig import pip_configuration
from builder.formats.oci.layout import list_tags, read_layout
from tests.integration.conftest import CLONE, Builder, keep_base
from tests.support.ranks import RANKS
from tests.support.schema import check_report as check_schema
from tests.support.smoke import Modified, Result, unpacked

NUMPY = "import numpy, sys; print(numpy.ones(3).sum(), sys.prefix)"
PRINTED = "3.0 /opt/conda"


@pytest.fixture(scope="session")
def publication(cpu: Builder, registry: Any) -> dict[str, Any]:
    """Publishes the image after a whole smoke test by the user-namespace runner."""
    done: dict[str, Any] = cpu.json("publish", "cpu", "--to", f"{registry.host}/", "--runner", "userns")
    assert done["smoke"] in ("pass", "warn")  # warn: this machine has other work
    assert set(done["tags"]) >= {"latest"} and len(done["tags"]) == 2
    return done


@pytest.fixture(scope="session")
def published(publication: dict[str, Any]) -> str:
    """The published image's reference by digest."""
    return f"{publication['reference']}@{publication['digest']}"


def digest(cpu: Builder) -> str:
    """The digest of the image in ``dist/``."""
    return list_tags(cpu.root / "dist")["cpu"]


def check_report(report: dict[str, Any]) -> None:
    """The report follows its schema, and its probes passed (test_smoke_torch measures with torch)."""
    check_schema(report)
    assert "pass" in {probe["status"] for probe in report["probes"]}


def test_docker_pull(published: str, docker_engine: Any) -> None:
    """Docker pulls the same digest and runs it."""
    docker_engine.docker("pull", published)
    image = docker_engine.client.images.get(published)
    assert image.attrs["RepoDigests"] == [published]
    for user in ("0:0", "1234:1234"):
        command = ["run", "--rm", "--network=none", "--user", user, published, "python", "-c", NUMPY]
        assert docker_engine.docker(*command).stdout.strip() == PRINTED


def test_podman_pull(published: str, podman: Any) -> None:
    """podman pulls the image and runs it as root and as another user."""
    podman.run("pull", "--tls-verify=false", published)
    for user in ("0", "1234"):
        done = podman.run("run", "--rm", "--network=none", "--user", user, published, "python", "-c", NUMPY)
        assert done.stdout.strip() == PRINTED


def test_smoke_by_userns(publication: dict[str, Any], cpu: Builder) -> None:
    """The smoke test that publishing ran, by the user-namespace runner."""
    (path,) = (cpu.root / "reports" / "cpu").glob(f"{publication['digest'][7:19]}-*.json")
    report = json.loads(path.read_text())
    assert report["verdict"] in ("pass", "warn") and report["image"]["runner"] == "userns"
    check_report(report)


@pytest.mark.parametrize("runner", ["podman", "docker", "apptainer"])
def test_smoke_by_engine(runner: str, cpu: Builder, use_runner: Callable[[str], None]) -> None:
    """The smoke test passes under each engine, and two ranks meet; their work needs no torch."""
    use_runner(runner)
    done = cpu.json("smoke", "cpu", "--runner", runner)
    assert done["verdict"] in ("pass", "warn") and done["runner"] == runner
    check_report(done["report"])

    mounts = [Mount(unpacked(), "/smoke"), Mount(CLONE, str(CLONE))]
    options = RunOptions({"MEETING": "/tmp"}, mounts, entrypoint=[], timeout_s=300)
    words = Modified(RANKS).command("--ranks", "2", python="/opt/conda/bin/python", file="/smoke")
    found = find_runner(Workspace.of(Settings.from_environment(cache=cpu.cache)), runner)
    ran = found.run(read_layout(cpu.root / "dist", "cpu"), words, options)
    result = Result(subprocess.CompletedProcess(words, ran.returncode, ran.stdout, ran.stderr))
    assert result.verdict == "pass" and result.report["launch"]["ranks"] == 2, result.table


def test_ordinary_user(cpu: Builder, ordinary_user: Any) -> None:
    """Another user with a cache and a umask of their own builds the same digest from the lock, and runs it.

    An ordinary user without subordinate ids cannot bootstrap Debian, so they get the base of the first build,
    which they verify by its digest.
    """
    project = ordinary_user.tmp / "everywhere"
    shutil.copytree(cpu.root / "recipes", project / "recipes")
    shutil.copytree(cpu.root / "environments", project / "environments")
    cache = ordinary_user.tmp / "everywhere-cache"
    keep_base(cpu.cache, cache)
    ordinary_user.own(ordinary_user.tmp)
    theirs = Builder(project, cache)
    configured = (
        pip_configuration()
    )  # the lock may name files that only the settings of this user's pip lead to
    env = {
        "PYTHONPATH": str(CLONE),
        "BUILDER_MIRRORS": os.environ.get("BUILDER_MIRRORS", ""),
        "PIP_FIND_LINKS": " ".join(configured.find_links),
        "PIP_EXTRA_INDEX_URL": " ".join(configured.extra_index_urls),
    }
    with_umask = ["sh", "-c", 'umask 077 && exec "$@"', "sh"]
    built = ordinary_user.run([*with_umask, *theirs.command("build", "cpu", "--json")], env)
    assert json.loads(built.stdout)["digest"] == digest(cpu)
    smoke = theirs.command("smoke", "cpu", "--runner", "userns", "--json")
    assert json.loads(ordinary_user.run(smoke, env).stdout)["verdict"] in ("pass", "warn")


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_cold_cache(jobs: str, cpu: Builder, tmp_path: Path) -> None:
    """With an empty cache (but for the base), on one thread and on four, the digest is the same."""
    cold = Builder(cpu.root, keep_base(cpu.cache, tmp_path / "cache"))
    done = cold.json("--jobs", jobs, "build", "cpu", "--to", f"oci:{tmp_path}/dist")
    assert done["digest"] == digest(cpu)
