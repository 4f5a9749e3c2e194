"""The conda environment file for cotainr, and when builder serves the packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from builder.engines.cotainr_inputs import environment_file, needs_server
from tests.support.engines import HASH, package, request


def test_environment_file(tmp_path: Path) -> None:
    """It has every locked package by version and build, and no credentials."""
    packages = [
        package("python", version="3.11.9"),
        package(
            "local",
            url="https://user:secret@mirror.example/t/token123/own/noarch/local-2.0-h1_3.tar.bz2",
            version="2.0",
        ),
        package("torch", "pip", "2.0+rocm"),
    ]
    pip = {
        "index_url": "https://user:secret@index.example/simple",
        "extra_index_urls": ["https://rocm.example/whl"],
    }
    r = request(tmp_path, packages, format="sif", pip=pip)
    text = environment_file(r, None)
    data = yaml.safe_load(text)
    assert data["channels"] == ["https://mirror.example/t/***/own", "conda-forge", "nodefaults"]
    assert data["dependencies"][:2] == ["local=2.0=h1_3", "python=3.11.9=py_0"]
    assert data["dependencies"][2]["pip"] == [
        "--index-url https://index.example/simple",
        "--extra-index-url https://rocm.example/whl",
        f"torch==2.0+rocm --hash=sha256:{HASH}",
    ]
    assert "secret" not in text and "token123" not in text
    served = yaml.safe_load(environment_file(r, "http://127.0.0.1:1"))
    assert served["channels"] == ["http://127.0.0.1:1/conda", "nodefaults"]
    assert served["dependencies"][2]["pip"][0] == "--no-index --find-links http://127.0.0.1:1/wheels/"


@pytest.mark.parametrize(
    ("url", "served"),
    [
        ("https://conda.anaconda.org/conda-forge/noarch/a-1.0-0.conda", False),
        ("https://$TOKEN@conda.example/own/noarch/a-1.0-0.conda", True),
        ("https://conda.example/t/secret/own/noarch/a-1.0-0.conda", True),
        ("builder://debian/noarch/a-1.0-0.conda", True),
    ],
)
def test_needs_server(tmp_path: Path, url: str, served: bool) -> None:
    """builder serves packages that conda and pip cannot download without credentials, mirror or network."""
    r = request(tmp_path, [package("a", url=url)], format="sif")
    assert needs_server(r) is served
    assert needs_server(replace(r, settings=replace(r.settings, offline=True)))
    assert needs_server(
        replace(r, settings=replace(r.settings, mirrors=(("https://conda.anaconda.org", "/mirror"),)))
    )
