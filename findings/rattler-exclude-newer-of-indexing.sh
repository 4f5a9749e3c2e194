#!/usr/bin/env bash
# A date for conda packages counts from the day of indexing where rattler made the index, not from the build.
#
# Versions: py-rattler 0.28.0, Python 3.11; a package that the script makes, with the timestamp of 2024-01-01.
# Behaviour: rattler.index writes indexed_timestamp, the time of its run, into each record; rattler.solve compares
# exclude_newer with it, and with the timestamp of the build only where there is none. So the same packages are
# there or not for the same date, by the day on which the channel was indexed.
# Output seen:
#   exclude_newer one day after the build, index by rattler: no candidate
#   the same without indexed_timestamp: bar 1.0
# Who is hurt: dated, reproducible solves with a private channel or a mirror that is indexed anew. "Nothing newer
# than a month" hides the whole channel for a month, and the message names no date that would help.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet py-rattler==0.28.0

cat >"$work/solve.py" <<'PYTHON'
import asyncio, io, json, pathlib, sys, tarfile
from datetime import datetime, timezone
from rattler import Channel, Platform, solve
from rattler.index import index_fs

channel = pathlib.Path(sys.argv[1])
(channel / "noarch").mkdir(parents=True)
record = dict(name="bar", version="1.0", build="0", build_number=0, depends=[], subdir="noarch", noarch="generic")
record["timestamp"] = 1704067200000
documents = {"index.json": record, "paths.json": {"paths": [], "paths_version": 1}}
with tarfile.open(channel / "noarch/bar-1.0-0.tar.bz2", "w:bz2") as archive:
    for name, document in documents.items():
        data = json.dumps(document).encode()
        member = tarfile.TarInfo(f"info/{name}")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


async def solved() -> str:
    day = datetime(2024, 1, 2, tzinfo=timezone.utc)
    wanted = dict(sources=[Channel(channel.as_uri())], specs=["bar"], exclude_newer=day)
    try:
        records = await solve(platforms=[Platform("linux-64"), Platform("noarch")], **wanted)
        return ", ".join(f"{one.name.normalized} {one.version}" for one in records)
    except Exception as e:
        return "no candidate" if "cutoff" in str(e) or "exclude" in str(e) else str(e)


async def main() -> None:
    await index_fs(channel, write_shards=False, write_zst=False)
    print("exclude_newer one day after the build, index by rattler:", await solved())
    index = channel / "noarch/repodata.json"
    data = json.loads(index.read_text())
    for one in (*data["packages"].values(), *data["packages.conda"].values()):
        del one["indexed_timestamp"]
    index.write_text(json.dumps(data))
    print("the same without indexed_timestamp:", await solved())


asyncio.run(main())
PYTHON
export HOME=$work
"$work/venv/bin/python" "$work/solve.py" "$work/channel" | tee "$work/out"
grep -q "by rattler: no candidate" "$work/out"
grep -q "without indexed_timestamp: bar 1.0" "$work/out"
