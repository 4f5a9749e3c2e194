"""Images whose Python is that of their base."""

from __future__ import annotations

from pathlib import Path

from tests.integration.conftest import Builder, keep_base

BASE = """
base: debian:bookworm
environment: environments/below.yml
pip: {fallback: pip}
"""
ABOVE = """
base: oci:dist:below
environment: environments/requirements.txt
python: base
pip: {fallback: pip}
"""
CODE = """
import importlib.util, sys
import six
print(sys.executable, sys.base_prefix, six.__version__, importlib.util.find_spec("idna") is not None)
"""


def test_base_python(tmp_path: Path, base_cache: Path) -> None:
    """The base has a Python in ``/opt/conda``, with the packages idna and six 1.16.0.

    The packages of the target win over those of the base, which it sees if the recipe says so.
    """
    root = tmp_path / "project"
    for name in ("recipes", "environments"):
        (root / name).mkdir(parents=True)
    (root / "recipes" / "below.yaml").write_text(BASE)
    (root / "environments" / "below.yml").write_text(
        "channels: [conda-forge]\ndependencies:\n- python=3.11\n- pip:\n  - six==1.16.0\n  - idna\n"
    )
    (root / "environments" / "requirements.txt").write_text("six==1.17.0\n")
    recipe = root / "recipes" / "t.yaml"
    recipe.write_text(ABOVE)
    builder = Builder(root, keep_base(base_cache, tmp_path / "cache"))
    builder.run("build", "below")

    def ran() -> list[str]:
        builder.run("lock", "t")
        builder.run("build", "t")
        return builder.run("run", "t", "--", "python", "-c", CODE).stdout.split()

    assert ran() == ["/opt/env/bin/python", "/opt/conda", "1.17.0", "False"]
    recipe.write_text(ABOVE.replace("python: base", "python: base-with-packages"))
    assert builder.run("lock", "t", "--check", check=False).returncode == 4
    assert ran() == ["/opt/env/bin/python", "/opt/conda", "1.17.0", "True"]
    lock = (root / "environments" / "requirements.t.lock.yml").read_text()
    assert "url: builder://base/opt/conda/bin/python3.11/linux-64/python-3.11.2-site_0.conda\n" in lock
