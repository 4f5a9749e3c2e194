"""The program that builds a wheel inside a container: it calls the package's build backend (PEP
517).

It runs with the image's own Python: standard library only, Python 3.8. builder runs it once; it
starts itself a second time with the Python of the build environment::

    driver.py              makes a virtual environment, installs the build requirements with uv
      └ driver.py hooks    asks the backend for further requirements, builds the wheel

All output goes to stderr. The exit code is one of these, or 1 if the build failed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

#: The folder of the build, which is the same in each container, so that paths in a wheel are the same.
FOLDER = Path("/build")
#: The backend needs further requirements, which are in ``requires.json``.
NEEDS_MORE = 75
#: The build environment could not be made.
NO_ENVIRONMENT = 76

_PYTHON = FOLDER / "env" / "bin" / "python"


def main() -> int:
    """Make the build environment and builds the wheel."""
    os.umask(0o022)
    os.dup2(2, 1)
    try:
        return _run(_read("plan.json"))
    finally:
        # Where an engine's root makes the files, the user of the host has to be able to remove them.
        subprocess.call(["chmod", "-R", "a+rwX", str(FOLDER)], stderr=subprocess.DEVNULL)


def _run(plan: dict[str, Any]) -> int:
    uv = [plan["uv"], "--offline", "--no-config", "--quiet", "--cache-dir", str(FOLDER / "cache")]
    options = ["--system-site-packages"] if plan["no_isolation"] else []
    failed = subprocess.call(
        [*uv, "venv", "--python", sys.executable, *options, str(FOLDER / "env")]
    )
    if not failed and plan["no_isolation"]:
        _add_packages_of_image()
    if not failed and plan["wheels"]:
        install = ["pip", "install", "--python", str(_PYTHON), "--no-index", "--no-deps"]
        wheels = [str(FOLDER / "wheels" / name) for name in plan["wheels"]]
        failed = subprocess.call([*uv, *install, *wheels])
    if failed:
        return NO_ENVIRONMENT
    env = dict(os.environ, VIRTUAL_ENV=str(_PYTHON.parent.parent))
    env["PATH"] = os.pathsep.join([str(_PYTHON.parent), env.get("PATH", os.defpath)])
    return subprocess.call(
        [str(_PYTHON), str(FOLDER / "driver.py"), "hooks"], cwd=_source(plan), env=env
    )


def _add_packages_of_image() -> None:
    """Add the image's packages: uv takes the Python below a virtual environment."""
    if sys.prefix != sys.base_prefix:
        folder = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
        packages = str(Path(sys.prefix) / folder)
        (FOLDER / "env" / folder / "image.pth").write_text(f"{packages}\n", encoding="utf-8")


def hooks() -> int:
    """Call the hooks of the backend, in the build environment."""
    plan = _read("plan.json")
    del sys.path[0]  # the folder of this program
    sys.path[:0] = [str(_source(plan) / folder) for folder in plan["backend_path"]]
    module, _, attributes = plan["backend"].partition(":")
    backend = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        backend = getattr(backend, attribute)

    settings = plan["config_settings"] or None
    ask = getattr(backend, "get_requires_for_build_wheel", None)
    if ask is not None and not plan["no_isolation"]:
        missing = [text for text in ask(settings) if text not in plan["requires"]]
        if missing:
            _write("requires.json", missing)
            return NEEDS_MORE
    _write("built.json", backend.build_wheel(str(FOLDER / "out"), settings))
    return 0


def _source(plan: dict[str, Any]) -> Path:
    return FOLDER / "source" / str(plan["source"])


def _read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def _write(name: str, value: Any) -> None:
    (FOLDER / name).write_text(json.dumps(value), encoding="utf-8")


if __name__ == "__main__":
    code = 1
    with contextlib.suppress(KeyboardInterrupt):
        try:
            code = hooks() if sys.argv[1:] == ["hooks"] else main()
        except Exception:
            traceback.print_exc()
    sys.stdout.flush()
    sys.exit(code)
