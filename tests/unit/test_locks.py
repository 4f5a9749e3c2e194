"""Lock files that are committed name only hosts that anybody can reach, or that the sources name."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Where the packages of public channels and indexes are.
PUBLIC = {"conda.anaconda.org", "files.pythonhosted.org", "download-r2.pytorch.org", "builder"}
HOST = re.compile(r"\b(?:https?|builder|file)://(?:[^/@\s]*@)?([^/:\s\"']*)")


def private_hosts(root: Path, locks: list[str]) -> dict[str, set[str]]:
    """The hosts of each lock that neither a recipe nor an environment file names."""
    sources = [*root.glob("recipes/*.y*ml"), *root.glob("environments/*.yml")]
    named = {h for path in sources if not path.name.endswith(".lock.yml") for h in hosts(path)}
    found = {name: hosts(root / name) - named - PUBLIC for name in locks}
    return {name: rest for name, rest in found.items() if rest}


def hosts(path: Path) -> set[str]:
    return set(HOST.findall(re.sub("builder://", "https://builder/", path.read_text())))


@pytest.mark.skipif(
    not shutil.which("git") or not (ROOT / ".git").exists(), reason="this is no clone with git"
)
def test_committed_locks() -> None:
    """A lock made behind a mirror names the mirror; it must not be committed for others. A fork whose recipes
    name its own index may commit its locks.
    """
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "*.lock.yml"],  # CI runs as another user
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert private_hosts(ROOT, listed.stdout.split()) == {}, (
        "lock again without the mirror, or name its host in the recipe (pip.index_url, conda.channels)"
    )


def test_private_hosts(tmp_path: Path) -> None:
    for folder in ("recipes", "environments"):
        (tmp_path / folder).mkdir()
    (tmp_path / "recipes/a.yaml").write_text("pip: {index_url: 'https://index.example/simple'}\n")
    lock = tmp_path / "environments/a.a.lock.yml"
    lock.write_text(
        "- url: https://conda.anaconda.org/c/a.conda\n- url: builder://debian/b.conda\n"
        "- url: https://index.example/c.whl\n- url: https://user@mirror.example:8443/d.whl\n- url: file:///srv/e\n"
    )
    assert private_hosts(tmp_path, ["environments/a.a.lock.yml"]) == {
        "environments/a.a.lock.yml": {"mirror.example", ""}
    }


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_lock_can_be_added(tmp_path: Path) -> None:
    """The repository's own ``.gitignore`` lets a fork add its locks."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments/cpu.cpu.lock.yml").write_text("version: 1\n")
    subprocess.run(["git", "add", "environments/cpu.cpu.lock.yml"], cwd=tmp_path, check=True)
