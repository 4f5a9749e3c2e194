"""A stub of Miniforge for tests of cotainr, because tests cannot download its installer from GitHub.

Only the download is replaced. cotainr's own code creates the sandbox, runs this installer in it, runs its
usual conda commands and writes the SIF. The installer is a shell script followed by a tar, as Miniforge's is.
It shows a licence, and installs a small ``conda`` that works by rattler: ``env create`` solves the
environment file with its channels, installs the packages, and runs the environment's pip for the wheels.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

INSTALLER = """\
#!/bin/bash
# A stub of the Miniforge installer, made by builder's tests.
set -e
batch=
prefix=
while getopts bsp: option; do
    case $option in
        b) batch=1 ;;
        p) prefix=$OPTARG ;;
        *) ;;
    esac
done
if [ -z "$batch" ]; then
    printf 'Please, press ENTER to continue\\n>>> '
    read -r _
    printf 'The licence of a stub: BSD-3-Clause.\\nDo you accept the license terms? [yes|no]\\n>>> '
    exit 1
fi
mkdir -p "$prefix/tool" "$prefix/bin" "$prefix/etc/profile.d" "$prefix/envs"
sed '1,/^END_OF_SCRIPT$/d' "$0" | tar -xf - -C "$prefix/tool"
cat > "$prefix/bin/conda" <<STUB
#!/bin/sh
exec "$prefix/tool/bin/python3.11" -I -S "$prefix/tool/conda.py" "$prefix" "\\$@"
STUB
chmod 755 "$prefix/bin/conda"
cat > "$prefix/etc/profile.d/conda.sh" <<STUB
PATH="$prefix/bin:\\$PATH"
conda() {
    if [ "\\$1" = activate ]; then
        CONDA_PREFIX="$prefix/envs/\\$2"
        PATH="\\$CONDA_PREFIX/bin:\\$PATH"
        export CONDA_PREFIX PATH
    else
        "$prefix/bin/conda" "\\$@"
    fi
}
STUB
exit 0
END_OF_SCRIPT
"""

#: Runs on the Python of the tool, which has only the standard library and py-rattler.
CONDA = """\
import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

prefix, command, *arguments = sys.argv[1:]
sys.path.insert(0, prefix + "/tool/builder-site")


def environment(path):
    found = {"channels": [], "dependencies": [], "pip": []}
    key = None
    for line in Path(path).read_text().splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not text.startswith("- "):
            key = text.partition(":")[0]
        elif text == "- pip:":
            key = "pip"
        else:
            found[key].append(text[2:].strip("'\\""))
    return found


async def create(file, target):
    import rattler

    wanted = environment(file)
    channels = [c for c in wanted["channels"] if c != "nodefaults"]
    specs = ["{} =={} {}".format(*s.split("=")) for s in wanted["dependencies"]]
    virtual = rattler.VirtualPackage.detect()
    generic = [v.into_generic() for v in virtual]
    cache = prefix + "/pkgs"
    gateway = rattler.Gateway(cache_dir=cache + "/repodata")
    platforms = ["linux-64", "noarch"]
    records = await rattler.solve(
        channels, specs, gateway=gateway, platforms=platforms, virtual_packages=generic
    )
    assert len(records) == len(specs), (len(records), specs)
    await rattler.install(records, target, cache_dir=cache, show_progress=False)
    if wanted["pip"]:
        requirements = Path(prefix, "requirements.txt")
        requirements.write_text("\\n".join(wanted["pip"]) + "\\n")
        pip = [target + "/bin/python", "-m", "pip", "install", "--no-cache-dir"]
        options = ["--disable-pip-version-check", "-r", str(requirements)]
        subprocess.run([*pip, *options], check=True)
        requirements.unlink()


if command == "info":
    print(prefix)
elif command == "env":
    file = arguments[arguments.index("-f") + 1]
    name = arguments[arguments.index("-n") + 1]
    asyncio.run(create(file, prefix + "/envs/" + name))
    sys.stdout.flush()
    os._exit(0)  # see builder/build/engines/install_conda.py
elif command == "clean":
    shutil.rmtree(prefix + "/pkgs", ignore_errors=True)
    if any(Path(prefix, "envs").iterdir()):  # cotainr's last command: the tool does not belong in the image
        shutil.rmtree(prefix + "/tool")
"""

COTAINR = """\
#!{python}
# cotainr itself, except for the download of the installer, or the pauses between its attempts.
import shutil
import sys
import types

sys.path.insert(0, {library!r})
from cotainr import cli, pack

installer = {installer!r}


def copy_installer(self, *, installer_path):
    shutil.copyfile(installer, installer_path)


if installer:
    pack.CondaInstall._download_miniforge_installer = copy_installer
else:
    pack.time = types.SimpleNamespace(sleep=lambda seconds: None)
sys.argv[0] = "cotainr"
cli.main()
"""


def make_installer(path: Path, tool: Path) -> Path:
    """Writes the installer. ``tool`` is the tar with Python and py-rattler of builder's install bundles."""
    import tarfile

    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_suffix(".tar")
    script = path.with_suffix(".py")
    script.write_text(CONDA)
    work.write_bytes(tool.read_bytes())
    with tarfile.open(work, "a") as tar:
        tar.add(script, "./conda.py")
    path.write_bytes(INSTALLER.encode() + work.read_bytes())
    work.unlink()
    script.unlink()
    return path


def cotainr_with(folder: Path, installer: Path | None) -> Path:
    """Writes a ``cotainr`` program into ``folder/bin``.

    Args:
        folder: A new folder.
        installer: The file to use as Miniforge's; None downloads it, without pauses between attempts.
    """
    import shutil

    import cotainr

    library = folder / "lib"
    shutil.copytree(Path(cotainr.__file__).parent, library / "cotainr", dirs_exist_ok=True)
    program = folder / "bin" / "cotainr"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        COTAINR.format(python=sys.executable, library=str(library), installer=installer and str(installer))
    )
    program.chmod(0o755)
    assert os.access(program, os.X_OK)
    return program


def write_tool(prefix: Path, target: Path) -> Path:
    """Write a tar of an environment with Python, and py-rattler beside it in ``builder-site``."""
    import rattler

    def without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.name.endswith("/__pycache__") else member

    with tarfile.open(target, "w") as tar:
        tar.add(prefix, ".", filter=without_bytecode)
        rattler_folder = Path(rattler.__file__).parent
        tar.add(rattler_folder, "./builder-site/rattler", filter=without_bytecode)
    return target
