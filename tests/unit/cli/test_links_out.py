"""A clone of somebody's repository whose files and folders are symlinks to those of the user."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.cli.start import new
from builder.formats.oci.layout import read_layout
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit, whole

SECRET = "machine host.example login u password S3CR3T\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's, outside of the project."""
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """``builder init`` asks neither for a base nor for indexes."""
    monkeypatch.setattr(new, "usual_base", lambda settings: ("oci:base", ""))
    monkeypatch.setattr(new, "probe_indexes", lambda *given: {})
    monkeypatch.setattr(new, "probe_channels", lambda request: ([], []))


def test_gitignore(do: Cli, tiny: TinyProject, secret: Path) -> None:
    """The file behind a link is neither read nor replaced by an ordinary file that git would publish."""
    link = tiny.root / ".gitignore"
    link.symlink_to(secret)
    (tiny.root / "requirements.txt").write_text("pure\n")
    made = do("init", "-y", "--name", "other", "--json")
    assert ".gitignore" not in made.json["files"] and link.is_symlink() and secret.read_text() == SECRET
    assert ".gitignore is a symlink" in do("init", "-y", "--name", "third").err


@pytest.mark.parametrize("folder", ["recipes", "sites"])
def test_folder_that_init_writes(do: Cli, tiny: TinyProject, tmp_path: Path, folder: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(tiny.root / folder, ignore_errors=True)
    (tiny.root / folder).symlink_to(outside)
    (tiny.root / "environment.yml").write_text("dependencies: []\n")
    command = ["init", "-y", "--name", "other"] if folder == "recipes" else ["sites", "new", "other"]
    result = do(*command)
    assert result.code == 3 and f"rm {tiny.root / folder}" in result.err
    assert not list(outside.iterdir()) and not list(tiny.root.glob("[res]*/other.*"))


@pytest.mark.parametrize("inner", ["dist", "dist/blobs", "dist/blobs/sha256"])
def test_dist(do: Cli, copy: TinyProject, tmp_path: Path, inner: str) -> None:
    """A build moves no tag of another project, a pruning removes none of its blobs; --to still works."""
    other = tmp_path / "other-project"
    shutil.move(copy.root / "dist", other / "dist")
    (copy.root / inner).parent.mkdir(exist_ok=True, parents=True)
    (copy.root / inner).symlink_to(other / inner)
    if inner != "dist":
        (copy.root / "dist" / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    edit(copy.recipe, labels={"changed": "yes"})
    before = {path: path.stat().st_ino for path in other.rglob("*")}
    result = do("build", "tiny")
    assert result.code == 3 and f"rm {copy.root / inner}; " in result.err and "--to oci:DIR" in result.err
    assert do("cache", "prune").code == 0, "the cache is pruned from anywhere"
    assert {path: path.stat().st_ino for path in other.rglob("*")} == before
    whole(other / "dist", read_layout(other / "dist", "tiny").digest)
    assert do("build", "tiny", "--to", f"oci:{tmp_path}/scratch").code == 0


def test_project_behind_link(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """The whole project may be behind a link, and folders of it behind links within."""
    (tmp_path / "link").symlink_to(copy.root)
    shutil.move(copy.root / "dist", copy.root / "images")
    (copy.root / "dist").symlink_to("images")
    for command in (["build", "tiny"], ["lock", "tiny"], ["cache", "prune"]):
        assert do("--project", tmp_path / "link", *command).code == 0


def test_reports(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    (copy.root / "reports").mkdir(exist_ok=True)
    (copy.root / "reports" / "tiny").symlink_to(tmp_path)
    result = do("report", "tiny")
    assert result.code == 3 and f"rm {copy.root / 'reports' / 'tiny'}" in result.err


@pytest.mark.parametrize("key", ["lock", "environment"])
@pytest.mark.parametrize("through", ["link", "name"])
def test_file_that_a_recipe_names(do: Cli, tiny: TinyProject, secret: Path, key: str, through: str) -> None:
    """No line of a file outside of the project is in a message."""
    (tiny.root / "requirements.txt").symlink_to(secret)
    value = "requirements.txt" if through == "link" else "../secret"
    edit(tiny.recipe, **{key: value})
    result = do("lock", "tiny")
    assert result.code == 3 and f"{key}: " in result.err and "outside of the project" in result.err
    assert "tiny.yaml:" in result.err and "S3CR3T" not in result.err + result.out


@pytest.mark.parametrize(
    "name", ["recipes/_base.yaml", "sites/there.yaml", ".builderignore", "tiny.tiny.lock.yml"]
)
def test_file_that_is_read_by_its_name(do: Cli, copy: TinyProject, secret: Path, name: str) -> None:
    secret.write_text("@S3CR3T : x\n[!\n")
    link = copy.root / ("environments" if name.endswith(".lock.yml") else ".") / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    edit(copy.recipe, files=[{"source": "recipes", "target": "/opt/recipes"}])
    result = do("build", "tiny")
    assert result.code == 3 and "outside of the project" in result.err
    assert "S3CR3T" not in result.err + result.out


def test_base_that_is_no_archive(do: Cli, tiny: TinyProject, secret: Path) -> None:
    """An archive may be anywhere, so the message on another file shows nothing of it."""
    secret.write_text("root:x:0:0:" + "S3CR3T:" * 100)
    edit(tiny.recipe, base=f"docker-archive:{secret}")
    result = do("lock", "tiny")
    assert result.code == 8 and "not a tar" in result.err and "S3CR3T"[:4] not in result.err


@pytest.mark.parametrize("name", ["environment.yml", "pyproject.toml", "requirements.txt", "x.lock.yml"])
def test_file_that_names_packages(do: Cli, tiny: TinyProject, secret: Path, name: str) -> None:
    secret.write_text('[project]\nname = "S3CR3T"\n')
    (tiny.root / name).symlink_to(secret)
    result = do("init", "-y", "--name", "other", "--from", tiny.root / name)
    assert result.code in (2, 3) and "outside of the project" in result.err
    assert "S3CR3T" not in result.err + result.out
