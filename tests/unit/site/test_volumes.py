"""Named volumes of docker and podman, which ``--bind NAME:/PATH`` names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from builder.config.recipe import load_recipe
from builder.site.arguments import parse_bind
from builder.site.plan import plan_job
from builder.site.render import render
from builder.site.request import JobRequest

ROOT = Path(__file__).parents[3]


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a slash is a volume, unless a folder has it; other runtimes have no volumes."""
    monkeypatch.chdir(tmp_path)
    assert parse_bind("food11:/mnt", volumes=True) == "food11:/mnt"
    assert parse_bind("food11:/mnt:ro", "$PWD", volumes=True) == "food11:/mnt:ro"
    assert parse_bind("./food11:/mnt", volumes=True) == f"{tmp_path}/./food11:/mnt"
    assert parse_bind("a/b:/mnt", "$PWD", volumes=True) == "$PWD/a/b:/mnt"
    assert parse_bind("food11", volumes=True) == f"{tmp_path}/food11:{tmp_path}/food11"
    assert parse_bind("food11:/mnt") == f"{tmp_path}/food11:/mnt"
    (tmp_path / "food11").mkdir()
    assert parse_bind("food11:/mnt", volumes=True) == f"{tmp_path}/food11:/mnt"


def test_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compose file uses the volume, and does not remove it with the cluster."""
    monkeypatch.chdir(tmp_path)
    request = JobRequest(command=("python", "t.py"), binds=("food11:/mnt", "./here:/here", "food11:/again"))
    text = render(plan_job(load_recipe("chameleon-a100", ROOT), request))
    compose = yaml.safe_load(text.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0])
    assert compose["volumes"] == {"food11": {"external": True}}
    for service in compose["services"].values():
        assert {"food11:/mnt", "food11:/again", "$PWD/./here:/here"} <= set(service["volumes"])
    assert "docker volume create food11 >/dev/null" in text
