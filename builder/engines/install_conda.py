"""Installs the conda packages of an install bundle with rattler. Runs in the image during the build:

    python -I -S install_conda.py BUNDLE PREFIX

Python and py-rattler are those of the bundle's ``tool.tar``. Nothing else is available, so nothing of builder
is imported. Runs on Python 3.10 and later.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path


async def install_packages(bundle: Path, prefix: Path, files: list[str]) -> None:
    """Installs the archives, which are in link order, and runs their link scripts."""
    from rattler import RepoDataRecord, install

    records = [await RepoDataRecord.from_package_archive(str(bundle / file)) for file in files]
    await install(records, prefix, cache_dir=bundle / "cache", execute_link_scripts=True, show_progress=False)
    print(len(records), "conda packages installed", flush=True)


def record_origin(prefix: Path, urls: dict[str, str], requested: list[str]) -> None:
    """Writes into conda-meta the public addresses of the packages, instead of paths in the bundle.

    Also marks the requested packages, and makes the records readable by everybody, as conda does.
    """
    by_name = {file.rsplit("/", 1)[1]: url for file, url in urls.items()}
    for path in (prefix / "conda-meta").glob("*.json"):
        record = json.loads(path.read_text())
        url = by_name[record["fn"]]
        record.update(url=url, channel=url.rsplit("/", 2)[0] + "/", link={"source": "", "type": 3})
        record.pop("extracted_package_dir", None)
        if record["name"] in requested:
            record.update(requested_spec=record["name"], requested_specs=[record["name"]])
        path.write_text(json.dumps(record, indent=2))
        path.chmod(0o644)


def main() -> None:
    bundle, prefix = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, f"{bundle}/tool/builder-site")
    urls = json.loads((bundle / "urls.json").read_text())
    requested = json.loads((bundle / "requested.json").read_text())
    asyncio.run(install_packages(bundle, prefix, list(urls)))
    record_origin(prefix, urls, requested)
    (prefix / "CACHEDIR.TAG").unlink(missing_ok=True)  # backup programs would skip the environment
    # rattler's threads may still hold Python objects (py-rattler 0.28), which crashes an interpreter that
    # ends normally
    os._exit(0)


if __name__ == "__main__":
    main()
