"""The apptainer engine without apptainer: its definition file, and failures that spython hides."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from builder.engines.apptainer import Apptainer, definition, environment, failed_step, run_build
from builder.engines.bundle import PLACE
from builder.errors import ImageError
from builder.run.apptainer import find_apptainer
from tests.support.engines import install_inputs, request


def test_definition(tmp_path: Path) -> None:
    labels = {"title": "two  words", "source": "https://me:secret@h/x"}
    r = request(tmp_path, cmd=("python", "-c", "print(1)"), workdir="/app", labels=labels)
    text = definition(r, install_inputs(tmp_path, [], GREETING="a 'quoted' $value"), ("oci", "base"), "kit")
    assert "Bootstrap: oci\nFrom: base\n" in text
    assert f"%files\n    kit {PLACE}\n" in text
    assert """ export GREETING='a '"'"'quoted'"'"' $value'\n""" in text
    assert "    [ \"$#\" -gt 0 ] || set -- python -c 'print(1)'\n" in text
    assert '    exec /opt/builder/entrypoint "$@"\n' in text
    assert "    title two words\n    source https://h/x\n" in text


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
            "echo 'INFO: Running post scriptlet'; echo 'FATAL: no luck' >&2; exit 255",
            "ended with code 255, in %post",
        ),
        ("exit 0", "reported success but wrote no file, before the base was unpacked"),
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


def test_spython_hides_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the engine does not use spython's client: if this fails one day, the client will do."""
    from spython.main import get_client

    monkeypatch.setenv("PATH", fake_singularity(tmp_path / "bin", "exit 255")["PATH"])
    client = get_client(quiet=True)
    assert client.build(str(tmp_path / "x.def"), str(tmp_path / "x.sif"), sudo=False, quiet=True) is None
    pulled = client.pull("docker://example.org/nothing:1", pull_folder=str(tmp_path), quiet=True)
    assert pulled is not None and not Path(str(pulled)).exists()


def test_failed_step() -> None:
    assert failed_step([]) == "before the base was unpacked"
    assert failed_step(["INFO:    Running post scriptlet", "x"]) == "in %post (installing the lock)"
    assert (
        failed_step(["INFO:    Running post scriptlet", "INFO:    Creating SIF file..."]) == "writing the SIF"
    )


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
    r = request(tmp_path)
    with pytest.raises(ImageError, match="which begins a section"):
        definition(r, install_inputs(tmp_path, [], GREETING=value), ("oci", "base"), "kit")
    text = definition(r, install_inputs(tmp_path, [], GREETING="a\x0b%post\u2028%b\nc"), ("oci", "b"), "kit")
    assert [line for line in text.split("\n") if line.startswith("%post")] == ["%post"]


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of packages, which cotainr runs, see no credentials of builder."""
    for name, value in {"REGISTRY_PASSWORD": "secret", "BUILDER_MIRRORS": "a=b", "OTHER": "x"}.items():
        monkeypatch.setenv(name, value)
    settings = request(tmp_path).settings
    found = environment(settings)
    assert found["OTHER"] == "x" and found["APPTAINER_TMPDIR"] == str(settings.tmpdir)
    assert not any(name.startswith(("REGISTRY_", "BUILDER_")) for name in found)
    monkeypatch.setenv("SINGULARITY_TMPDIR", "/elsewhere")
    found = environment(settings)
    assert "APPTAINER_TMPDIR" not in found and "REGISTRY_PASSWORD" not in found
