"""The apptainer engine without apptainer: its definition file, and failures that spython hides."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from builder.build.engines.apptainer import Apptainer, definition, environment, run_build
from builder.build.run.apptainer import find_apptainer
from builder.core.errors import ImageError
from builder.core.model import Descriptor, Image, canonical_json
from tests.support.engines import request


def image(env: dict[str, str], labels: dict[str, str] | None = None) -> Image:
    """An image without layers."""
    inner = {
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Entrypoint": ["/opt/builder/entrypoint"],
        "Cmd": ["python", "-c", "print(1)"],
        "Labels": labels or {},
    }
    config = canonical_json({"architecture": "amd64", "os": "linux", "config": inner})
    nothing = Descriptor("", "sha256:a", 0)
    return Image((), config, nothing, b"", nothing)


def test_definition(tmp_path: Path) -> None:
    env = {"GREETING": "a 'quoted' $value"}
    text = definition(request(tmp_path), image(env, {"title": "two  words"}), "image")
    assert "Bootstrap: oci\nFrom: image\n" in text
    assert """ export GREETING='a '"'"'quoted'"'"' $value'\n""" in text
    assert "    [ \"$#\" -gt 0 ] || set -- python -c 'print(1)'\n" in text
    assert '    exec /opt/builder/entrypoint "$@"\n' in text
    assert "    title two words\n" in text


def fake_singularity(folder: Path, script: str) -> dict[str, str]:
    """A program of that name: what is tested is what builder makes of spython's answer to it."""
    folder.mkdir(exist_ok=True)
    program = folder / "singularity"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--help*|*--version*|version) exit 0;; esac\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'FATAL: no luck' >&2; exit 255",
            "ended with code 255",
        ),
        ("exit 0", "ended with code 0 but wrote no file"),
        ('for last; do :; done; echo x > "${last%.def}.sif"; exit 1', "ended with code 1"),
    ],
)
def test_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    """A failed build is an error, and so is a successful one without a file."""
    monkeypatch.setenv("PATH", fake_singularity(tmp_path / "bin", script)["PATH"])
    (tmp_path / "image.def").write_text("Bootstrap: docker\n")
    with pytest.raises(ImageError) as caught:
        run_build(tmp_path / "image.def", tmp_path / "image.sif", request(tmp_path, format="sif"))
    assert f"apptainer build of target t {said}" in caught.value.message
    if "FATAL" in script:
        assert "FATAL: no luck" in caught.value.message


def test_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apptainer is preferred to singularity; one that fails gives its reason."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Apptainer().available() == "neither apptainer nor singularity is installed"
    (tmp_path / "apptainer").write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    (tmp_path / "apptainer").chmod(0o755)
    assert Apptainer().available() == f"{tmp_path}/apptainer does not work: broken"
    (tmp_path / "singularity").write_text("#!/bin/sh\n")
    (tmp_path / "singularity").chmod(0o755)
    assert find_apptainer() == f"{tmp_path}/apptainer"
    (tmp_path / "apptainer").unlink()
    assert find_apptainer() == f"{tmp_path}/singularity" and Apptainer().available() is None


@pytest.mark.parametrize("value", ["x\n%setup\nid", "x\n  %post", "a\n\t%files"])
def test_hostile_base(tmp_path: Path, value: str) -> None:
    """No value of a base begins a section of the definition file; other values may have lines."""
    with pytest.raises(ImageError, match="which begins a section"):
        definition(request(tmp_path), image({"GREETING": value}), "image")
    text = definition(request(tmp_path), image({"GREETING": "a\x0b%post\u2028%b\nc"}), "image")
    assert not [line for line in text.split("\n") if line.startswith("%post")]


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of packages, which cotainr runs, see no credentials of builder."""
    for name, value in {"REGISTRY_PASSWORD": "secret", "BUILDER_MIRRORS": "a=b", "OTHER": "x"}.items():
        monkeypatch.setenv(name, value)
    settings = request(tmp_path).work.settings
    found = environment(settings)
    assert found["OTHER"] == "x" and found["APPTAINER_TMPDIR"] == str(settings.tmpdir)
    assert not any(name.startswith(("REGISTRY_", "BUILDER_")) for name in found)
    monkeypatch.setenv("SINGULARITY_TMPDIR", "/elsewhere")
    found = environment(settings)
    assert "APPTAINER_TMPDIR" not in found and "REGISTRY_PASSWORD" not in found
