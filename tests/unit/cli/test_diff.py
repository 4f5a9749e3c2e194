"""``builder diff`` of published images: release notes. That of locks is in test_markdown.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.deliver.publishing.smoke_record import SmokeRecord
from builder.deliver.smoke.run import SmokeReport
from builder.formats.oci.layout import list_tags
from tests.support.channel import index_channel, make_package
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit
from tests.support.reports import a100
from tests.support.wheels import make_wheel


def publish(do: Cli, project: TinyProject, to: str, month: str, speed: float = 1.0) -> None:
    """Publishes tiny, with the report of an A100 of this speed."""
    digest = do("build", "tiny", "--json").json["digest"]
    started = f"20{month.replace('.', '-')}-01T08:00:00Z"
    report = a100({"matmul.fp32": speed}, digest=digest, started=started, noise=0)
    path = project.root / f"{month}.json"
    path.write_text(json.dumps(report))
    SmokeRecord(project.cache).update(SmokeReport("pass", {}, "userns", digest, 0.0, path))
    done = do("publish", "tiny", "--to", to, "--tag", month)
    assert done.code == 0 and "attached: SBOM, provenance, lock, smoke report" in done.out


@pytest.fixture
def months(do: Cli, copy: TinyProject, tmp_path: Path) -> str:
    """A layout with the images of two months: the second one has another package and half of the speed."""
    to = f"oci:{tmp_path / 'there'}"
    edit(copy.recipe, registry={"repository": "t", "tags": ["%y.%m"]})
    publish(do, copy, to, "26.10")
    make_package(tmp_path / "more", "extra", "1.0", files={"share/extra": "x"})
    index_channel(tmp_path / "more")
    text = copy.environment.read_text()
    channels = [line.strip("- ") for line in text.splitlines() if "http://" in line]
    edit(copy.environment, channels=[(tmp_path / "more").as_uri(), *channels])
    edit(copy.environment, dependencies=["python=3.11", "greeter", "extra"])
    assert do("lock", "tiny").code == 0
    publish(do, copy, to, "26.11", 0.5)
    return to


def test_release(do: Cli, months: str) -> None:
    """Packages, layers, and figures; a user of the old image downloads the layers that are new."""
    notes = do("diff", f"{months}:26.10", f"{months}:26.11", "--json")
    found = notes.json
    assert notes.code == 1 and not found["equal"] and found["verdicts"] == ["pass", "pass"]
    assert {p["name"] for p in found["packages"]} == {"extra", "bulky", "pure", "pip"}
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["conda bulky"]["new"] is None and layers["conda bulky"]["old"] > 2_000_000
    assert "builder: entry point, smoke test, files" in layers and "base" not in layers
    assert 0 < found["download"] < found["images"]["new"]["size"] < found["images"]["old"]["size"]
    figures = {figure["id"]: figure["ratio"] for figure in found["figures"]["changes"]}
    assert figures["matmul.fp32"] == 0.5 and figures["matmul.bf16"] == 1
    same = do("diff", f"{months}:26.11", f"{months}:26.11", "--json")
    assert same.code == 0 and same.json["equal"] and same.json["download"] == 0


def test_texts(do: Cli, months: str) -> None:
    """Text and Markdown have the same tables."""
    pair = (f"{months}:26.10", f"{months}:26.11")
    text, page = do("diff", *pair), do("diff", *pair, "--format", "markdown")
    assert text.code == page.code == 1
    for line in ("Packages: 0 changed, 1 added, 3 removed.", "pass (2026-10-01) -> pass (2026-11-01)"):
        assert line in text.out and line in page.out
    assert "18.2 TFLOP/s" in text.out and "-50.0 %" in text.out and "A100-SXM4-40GB" in text.out
    assert (
        "| `extra` | `conda` | `new` | `1.0` |" in page.out
        and "| `matmul.fp32` | `18.2 TFLOP/s` |" in page.out
    )
    assert len(page.out.splitlines()) < 60


def openssl(folder: Path, version: str, *more: str) -> Path:
    """A wheel that names what was compiled in (PEP 770), as cryptography 50.0.2 does."""
    components = [{"type": "library", "name": "openssl", "version": version}]
    components += [{"type": "library", "name": name, "version": "1"} for name in more]
    sbom = json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "components": components})
    files = {"sealed-1.0.dist-info/sboms/sbom.json": sbom, "sealed.py": ""}
    return make_wheel(folder, "sealed", files=files)


def test_inside(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """A wheel was built again with another OpenSSL: one line says so."""
    to = f"oci:{tmp_path / 'there'}"
    edit(copy.recipe, registry={"repository": "t", "tags": ["%y.%m"]})
    links = tmp_path / "links"
    edit(copy.environment, dependencies=["python=3.11", {"pip": [f"--find-links {links}", "sealed"]}])
    months = ("26.10", "3.5.0", ()), ("26.11", "3.5.1", ("--update", "sealed"))
    for month, version, update in months:
        openssl(links, version, "same")
        assert do("lock", "tiny", *update).code == 0
        publish(do, copy, to, month)
    notes = do("diff", f"{to}:26.10", f"{to}:26.11")
    assert notes.code == 1 and "Packages: 2 changed, 0 added, 0 removed." in notes.out
    (line,) = (line for line in notes.out.splitlines() if "openssl" in line)
    assert line.split() == ["openssl", "in", "sealed", "pip", "3.5.0", "3.5.1"]
    assert "same in sealed" not in notes.out
    page = do("diff", f"{to}:26.10", f"{to}:26.11", "--format", "markdown").out
    assert "| `openssl in sealed` | `pip` | `3.5.0` | `3.5.1` |" in page


def test_locks_and_images(do: Cli, copy: TinyProject, months: str) -> None:
    """A lock file is compared with the lock of an image."""
    same = do("diff", copy.lock, f"{months}:26.11")
    assert same.code == 0 and same.out == "No package changed.\n"
    assert do("diff", f"{months}:26.10", copy.lock).code == 1


def test_errors(do: Cli, copy: TinyProject, months: str, tmp_path: Path) -> None:
    """An image without an attached lock is an error with what to type; so are targets without registry."""
    layout = tmp_path / "there"
    index = json.loads((layout / "index.json").read_text())
    entries = [e for e in index["manifests"] if "lock" not in e.get("artifactType", "")]
    (layout / "index.json").write_text(json.dumps({**index, "manifests": entries}))
    refused = do("diff", f"{months}:26.10", f"{months}@{list_tags(layout)['26.11']}")
    assert refused.code == 4 and "no lock is attached" in refused.err and "builder publish" in refused.err
    assert "--to" in do("diff", "tiny:26.10", "tiny:26.11").err
    assert "no target named 'tinny'" in do("diff", "tinny:26.10", "tiny:26.11").err
    wrong = do("diff", "26.10", copy.lock)
    assert wrong.code == 4 and "26.10: no such lock file" in wrong.err and "TARGET:TAG" in wrong.err
