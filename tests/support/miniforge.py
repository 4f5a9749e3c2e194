"""What stands for Miniforge in tests of cotainr: its installer comes from GitHub, which tests do not reach.

Only the download is replaced: cotainr's own code makes the sandbox, runs this installer in it, asks conda for what it always asks
and packs the SIF. The installer is a shell script with a tar behind it, as Miniforge's is: it shows a licence, and puts a small
``conda`` at its prefix. That ``conda`` really works, by rattler: ``env create`` solves the environment file against its channels,
installs what comes out, and lets the environment's pip install the wheels.
"""

from __future__ import annotations

import os
import sys
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

#: Read on the Python of the tool, which has nothing but the standard library and py-rattler.
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
    records = await rattler.solve(channels, specs, gateway=gateway, platforms=platforms, virtual_packages=generic)
    assert len(records) == len(specs), (len(records), specs)
    await rattler.install(records, target, cache_dir=cache, show_progress=False)
    if wanted["pip"]:
        requirements = Path(prefix, "requirements.txt")
        requirements.write_text("\\n".join(wanted["pip"]) + "\\n")
        pip = [target + "/bin/python", "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check", "-r"]
        subprocess.run([*pip, str(requirements)], check=True)
        requirements.unlink()


if command == "info":
    print(prefix)
elif command == "env":
    file = arguments[arguments.index("-f") + 1]
    name = arguments[arguments.index("-n") + 1]
    asyncio.run(create(file, prefix + "/envs/" + name))
    sys.stdout.flush()
    os._exit(0)  # see builder/engines/install_conda.py
elif command == "clean":
    shutil.rmtree(prefix + "/pkgs", ignore_errors=True)
    if any(Path(prefix, "envs").iterdir()):  # the last that cotainr asks for: the tool is not to weigh on the image
        shutil.rmtree(prefix + "/tool")
"""

COTAINR = """\
#!{python}
# cotainr itself, but for the download of the installer.
import shutil
import sys

sys.path.insert(0, {library!r})
from cotainr import cli, pack


def copy_installer(self, *, installer_path):
    shutil.copyfile({installer!r}, installer_path)


pack.CondaInstall._download_miniforge_installer = copy_installer
sys.argv[0] = "cotainr"
cli.main()
"""


def make_installer(path: Path, tool: Path) -> Path:
    """Writes the installer; ``tool`` is the tar with Python and py-rattler that builder's own installers use."""
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


def cotainr_with(folder: Path, installer: Path, systems: str | None = None) -> Path:
    """A ``cotainr`` program in ``folder/bin`` that takes the installer from a file.

    ``systems`` is the text of a site's ``systems.json``, which cotainr looks for beside its own package.
    """
    import shutil

    import cotainr

    library = folder / "lib"
    shutil.copytree(Path(cotainr.__file__).parent, library / "cotainr", dirs_exist_ok=True)
    if systems is not None:
        (library / "systems.json").write_text(systems)
    program = folder / "bin" / "cotainr"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(COTAINR.format(python=sys.executable, library=str(library), installer=str(installer)))
    program.chmod(0o755)
    assert os.access(program, os.X_OK)
    return program
