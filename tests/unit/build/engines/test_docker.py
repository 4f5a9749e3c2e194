"""The Dockerfile of the docker engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.build.bases.image import BaseImage
from builder.build.engines.docker import dockerfile, run_steps
from builder.core.errors import ImageError
from builder.core.model import Descriptor, Layer
from tests.support.engines import HASH, request

LAYERS = {"layers/000.tar.gz": Layer(Descriptor("", "sha256:a", 1), "", title="numpy\nRUN id")}


def test_dockerfile() -> None:
    """It adds the layers to the base; no title of a layer becomes an instruction."""
    base = BaseImage("docker://registry.example/base:1", f"sha256:{HASH}", {"config": {}}, ())
    text = dockerfile(base, "registry.example/base@sha256:1", "/opt/my conda", LAYERS)
    instructions = [line for line in text.splitlines() if not line.startswith("#")]
    assert instructions == [
        "FROM registry.example/base@sha256:1",
        "USER root",
        'RUN ["rm", "-rf", "/opt/my conda"]',
        "ADD layers/000.tar.gz /",
    ]
    assert "# numpy RUN id\n" in text


def test_hostile_base() -> None:
    """The instructions of a base that Docker would run are refused."""
    config = {"config": {"OnBuild": ["ADD http://host.example/x /"]}}
    base = BaseImage("docker://registry.example/base:1", f"sha256:{HASH}", config, ())
    with pytest.raises(ImageError, match="ONBUILD instructions") as caught:
        dockerfile(base, "base", "/opt/conda", LAYERS)
    assert "--engine layered" in caught.value.hint


def test_failed_step(tmp_path: Path) -> None:
    """The error has the step and the last lines of output."""
    answers = [{"stream": "Step 2/4 : ADD x /\n"}, {"stream": "no space\n"}, {"error": "exit code 1"}]
    client = SimpleNamespace(api=SimpleNamespace(build=lambda **_: answers))
    with pytest.raises(ImageError, match=r"failed:\n    Step 2/4 : ADD x /\n    no space\n    exit code 1"):
        run_steps(request(tmp_path), client, iter(()), "tag")
