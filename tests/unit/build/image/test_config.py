"""The image's config and manifest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from builder.build.image.config import environment, layer_limit, make_image, most_layers, versions
from builder.core.model import DOCKER_LAYER_GZIP, Descriptor, Layer, Lock, LockedPackage
from tests.support.image_kit import EPOCH, base, recipe

LOCK = "sha256:" + "1" * 64


def package(name: str, version: str, manager: Any = "conda") -> LockedPackage:
    return LockedPackage(
        name, version, manager, "linux-64", f"https://h/linux-64/{name}-{version}-0.conda", "a" * 64
    )


def lock(*packages: LockedPackage) -> Lock:
    return Lock(packages, ("linux-64",), digest=LOCK)


def fake_layer(number: int, media_type: str = "application/vnd.oci.image.layer.v1.tar+gzip") -> Layer:
    digest = f"sha256:{number:064x}"
    return Layer(
        Descriptor(media_type, digest, 10 + number),
        f"sha256:{number + 10**6:064x}",
        Path("/nowhere"),
        title=f"layer {number}",
    )


def make(below=None, layers=(), *, epoch=EPOCH, env=None, annotations=None, the_lock=None, **more):
    return make_image(
        below or base(fake_layer(1)),
        layers,
        recipe=recipe(**more),
        lock=the_lock or lock(),
        env=env or {},
        annotations=annotations or {},
        epoch=epoch,
    )


def parts(image) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(image.config), json.loads(image.manifest)


def test_manifest_matches_config() -> None:
    """Manifest and config list the same layers, and the digests are right."""
    image = make(layers=[fake_layer(2), fake_layer(3)])
    config, manifest = parts(image)
    assert [d["digest"] for d in manifest["layers"]] == [f"sha256:{n:064x}" for n in (1, 2, 3)]
    assert config["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{n + 10**6:064x}" for n in (1, 2, 3)]}
    assert manifest["config"]["digest"] == "sha256:" + hashlib.sha256(image.config).hexdigest()
    assert image.digest == "sha256:" + hashlib.sha256(image.manifest).hexdigest()
    assert (config["architecture"], config["os"], config["created"]) == (
        "amd64",
        "linux",
        "1980-01-01T00:00:00Z",
    )
    assert [h["created_by"] for h in config["history"]] == ["layer 1", "builder: layer 2", "builder: layer 3"]
    assert image.size == 11 + 12 + 13


def test_environment() -> None:
    """The base's variables come first, without those that hide packages, then conda's, activation's and
    the recipe's.
    """
    below = base(
        fake_layer(1),
        env=[
            "PATH=/opt/conda/bin:/opt/other/bin:/usr/bin",
            "LANG=de_DE.UTF-8",
            "KEEP=a=b",
            "CONDA_EXE=/opt/x/bin/conda",
            "CONDA_PREFIX_1=/x",
            "CONDA_DIR=/opt/x",
            "MINE=base",
            "PYTHONPATH=/opt/venv/lib/python3.11/site-packages",
            "PYTHONHOME=/opt/venv",
            "PYTHONUSERBASE=/u",
            "PYTHONSTARTUP=/s.py",
            "PYTHONPLATLIBDIR=lib64",
            "PYTHONPYCACHEPREFIX=/tmp",
            "VIRTUAL_ENV=/opt/venv",
            "PYTHONDONTWRITEBYTECODE=1",
        ],
    )
    found = environment(
        below,
        recipe(env={"MINE": "recipe", "ACT": "recipe", "PYTHONSTARTUP": "/mine.py"}),
        lock(),
        {"ACT": "activation", "ACT2": "activation"},
    )
    assert found == {
        "PATH": "/opt/conda/bin:/opt/other/bin:/usr/bin",
        "LANG": "de_DE.UTF-8",
        "KEEP": "a=b",
        "CONDA_DIR": "/opt/x",
        "MINE": "recipe",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSTARTUP": "/mine.py",
        "CONDA_PREFIX": "/opt/conda",
        "CONDA_DEFAULT_ENV": "base",
        "CONDA_SHLVL": "1",
        "PYTHONNOUSERSITE": "1",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        "SSL_CERT_DIR": "/etc/ssl/certs",
        "ACT": "recipe",
        "ACT2": "activation",
    }


@pytest.mark.parametrize(
    ("reference", "packages", "env", "expected"),
    [
        ("docker://x/y", [], ["SSL_CERT_FILE=/base.pem"], {"SSL_CERT_FILE": "/base.pem"}),
        (
            "debian:bookworm",
            [package("ca-certificates", "1")],
            ["SSL_CERT_DIR=/old"],
            {"SSL_CERT_FILE": "/opt/conda/ssl/cacert.pem"},
        ),
        ("docker://x/y", [package("ca-certificates", "1", "pip")], [], {}),
    ],
)
def test_certificates(
    reference: str, packages: list[LockedPackage], env: list[str], expected: dict[str, str]
) -> None:
    """conda's certificates are preferred to Debian's, and these to the base's setting."""
    found = environment(base(reference=reference, env=env), recipe(), lock(*packages), {})
    assert {k: v for k, v in found.items() if k.startswith("SSL")} == expected


def test_entrypoint_and_cmd() -> None:
    """Entry point, command and working folder are the recipe's."""
    runtime = parts(make(workdir="/app", cmd=["python", "-u", "x.py"]))[0]["config"]
    assert (runtime["Entrypoint"], runtime["Cmd"], runtime["WorkingDir"]) == (
        ["/opt/builder/entrypoint"],
        ["python", "-u", "x.py"],
        "/app",
    )
    assert parts(make(entrypoint=["/bin/tini", "--"]))[0]["config"]["Entrypoint"] == ["/bin/tini", "--"]
    assert "Entrypoint" not in parts(make(entrypoint=[]))[0]["config"]


def test_annotations_and_labels() -> None:
    """Annotations are repeated as labels."""
    packages = [package("python", "3.11.9"), package("torch", "2.6.0+cu124", "pip")]
    notes = {"org.opencontainers.image.source": "https://h/repo", "org.opencontainers.image.revision": "abc"}
    config, manifest = parts(
        make(
            annotations=notes,
            the_lock=lock(*packages),
            description="Tiny",
            labels={"org.opencontainers.image.title": "A tiny one"},
        )
    )
    assert manifest["annotations"] == {
        **notes,
        "org.builder.cuda": "12.4",
        "org.builder.lock": LOCK,
        "org.builder.python": "3.11.9",
        "org.builder.target": "tiny",
        "org.builder.torch": "2.6.0+cu124",
        "org.opencontainers.image.base.digest": "sha256:" + "b" * 64,
        "org.opencontainers.image.base.name": "debian:bookworm",
        "org.opencontainers.image.created": "1980-01-01T00:00:00Z",
        "org.opencontainers.image.description": "Tiny",
        "org.opencontainers.image.title": "A tiny one",
    }
    assert config["config"]["Labels"] == manifest["annotations"]


def test_no_credentials() -> None:
    """Credentials in URLs of annotations, labels and the description are removed."""
    url = "https://me:secret@h/repo.git"
    title = "org.opencontainers.image.title"
    image = make(
        annotations={"org.opencontainers.image.source": url},
        labels={"documentation": f"see {url}", title: url},
        description=f"made from {url}",
    )
    config, manifest = parts(image)
    assert manifest["annotations"]["org.opencontainers.image.source"] == "https://h/repo.git"
    assert config["config"]["Labels"]["documentation"] == "see https://h/repo.git"
    assert (
        config["config"]["Labels"]["org.opencontainers.image.description"] == "made from https://h/repo.git"
    )
    assert b"secret" not in image.config + image.manifest


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ([package("pytorch", "2.5.1"), package("cuda-version", "12.6")], {"torch": "2.5.1", "cuda": "12.6"}),
        (
            [package("torch", "2.13.0", "pip"), package("nvidia-cuda-runtime-cu12", "12.8.90", "pip")],
            {"torch": "2.13.0", "cuda": "12.8"},
        ),
    ],
)
def test_versions(packages: list[LockedPackage], expected: dict[str, str]) -> None:
    """The versions of Python, torch and CUDA come from conda's and pip's packages."""
    assert versions(lock(*packages), "linux-64") == {f"org.builder.{k}": v for k, v in expected.items()}


def test_base_history() -> None:
    """The base's history is copied if it has one entry per layer, and generated if not."""
    below = base(fake_layer(1))
    entries = [{"created_by": "ADD rootfs"}, {"created_by": "ENV A=1", "empty_layer": True}]
    below.config["history"] = entries
    assert parts(make(below, [fake_layer(2)]))[0]["history"][:2] == entries
    below.config["history"] = [*entries, {"created_by": "RUN one too many"}]
    history = parts(make(below, [fake_layer(2)]))[0]["history"]
    assert [h["created_by"] for h in history] == ["layer 1", "builder: layer 2"]


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("com.nvidia.cudnn.version", True),  # of what is in the base, and so in the image
        ("maintainer", True),
        ("org.opencontainers.images", True),
        ("org.opencontainers.image.version", False),
        ("org.opencontainers.image.revision", False),
        ("org.opencontainers.image.source", False),
        ("org.opencontainers.image.licenses", False),
        ("org.opencontainers.image.ref.name", False),
        ("org.opencontainers.image.base.name", False),  # of the base's own base
        ("org.label-schema.vcs-ref", False),
        ("org.label-schema.usage.singularity.version", False),
        ("org.builder.steps", False),  # of a base that builder made
    ],
)
def test_labels_that_describe_the_base(name: str, stays: bool) -> None:
    """What describes the base is not said of the image, unless the recipe says so."""
    below = base(fake_layer(1), reference="oci:base", Labels={name: "theirs"})
    labels = parts(make(below))[0]["config"]["Labels"]
    assert labels.get(name) == ("theirs" if stays else None)
    assert labels["org.opencontainers.image.base.digest"] == below.digest
    assert parts(make(below, labels={name: "mine"}))[0]["config"]["Labels"][name] == "mine"


def test_docker_media_types() -> None:
    """Docker's media types are replaced by OCI's."""
    image = make(base(fake_layer(1, DOCKER_LAYER_GZIP)))
    assert parts(image)[1]["layers"][0]["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert image.layers[0].descriptor.digest == fake_layer(1).descriptor.digest


def test_inherited_config() -> None:
    """User, ports and labels are inherited; what belongs to the base's program is not."""
    below = base(
        fake_layer(1),
        User="mamba",
        Entrypoint=["/old"],
        Cmd=["old"],
        Healthcheck={"Test": ["CMD", "old"]},
        OnBuild=["RUN x"],
        ExposedPorts={"80/tcp": {}},
        Labels={"a": "base", "b": "base"},
    )
    runtime = parts(make(below, labels={"b": "recipe"}))[0]["config"]
    assert runtime["User"] == "mamba" and runtime["ExposedPorts"] == {"80/tcp": {}}
    assert runtime["Labels"]["a"] == "base" and runtime["Labels"]["b"] == "recipe"
    assert "Healthcheck" not in runtime and "OnBuild" not in runtime and runtime["Cmd"] == ["python"]


def test_layer_limit() -> None:
    """An image has to fit every engine of the table, so the smallest limit counts: Docker's graph drivers."""
    limit = layer_limit()
    assert (limit["engine"], limit["storage"], limit["layers"]) == ("Docker", "overlay2", 125)
    assert most_layers(recipe()) == 125 < most_layers(recipe(format="sif"))
