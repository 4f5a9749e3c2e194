"""Compares the site files with what sites and projects publish in a form for machines.

    python scripts/compare_sites.py [SITE]... [--all] [--checkout DIR]

Prints, for each difference, our value, theirs, and the file that has it; changes nothing. It reads tables in
the documentation of sites, ReFrame configurations and CIME's ``config_batch.xml``, on GitHub or in clones.
A difference is a question, not an error: a project may use less than the site allows. Exit code 1 if there
is a difference, 2 if a file cannot be read. docs/sites/keeping.md says what to do with the answer.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx

from builder.config.fields import seconds
from builder.config.queues import Limits, Partition, Slurm
from builder.config.site import Site
from builder.config.sitefile import read_site
from builder.config.sites import all_site_files
from builder.text import visible

_RAW = "https://raw.githubusercontent.com/{repository}/HEAD/{path}"
_UNITS = {"minute": 60, "min": 60, "hour": 3600, "hr": 3600, "day": 86400}
#: Slurm's units of memory in MiB.
_MIB = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


@dataclass(frozen=True)
class Fact:
    """What a published file says about a partition or a QOS. None: nothing."""

    name: str
    """The partition or QOS."""
    kind: str = "partition"
    """``partition`` or ``qos``; ``queue``: the file does not say which of them it is."""
    time_s: int | None = None
    """Longest time limit."""
    nodes: int | None = None
    """Most nodes of a job."""
    gpus: int | None = None
    """GPUs of a node."""
    memory_mib: int | None = None
    """Memory of a node that jobs can have."""


@dataclass(frozen=True)
class Source:
    """A published file about some sites."""

    sites: tuple[str, ...]
    repository: str
    path: str
    parse: Callable[[str], list[Fact]]


# parsers ----------------------------------------------------------------------------------------------------


def limit_tables(text: str) -> list[Fact]:
    """The rows of Markdown tables that have a column of names and one of time limits."""
    facts: list[Fact] = []
    columns: dict[str, int] = {}
    kind = ""
    for line in text.splitlines():
        if not line.strip().startswith("|"):
            columns = {}
            continue
        cells = [cell.strip(" `*") for cell in line.strip().strip("|").split("|")]
        if not columns:
            columns = _columns(cells)
            kind = "qos" if "qos" in cells[columns["name"]].lower() else "partition"
        elif "time" in columns and len(cells) > max(columns.values()) and set(cells[0]) - set("-: "):
            nodes = cells[columns["nodes"]] if "nodes" in columns else ""
            name, time = cells[columns["name"]], cells[columns["time"]]
            facts.append(Fact(name, kind, _duration(time), _number_of_nodes(nodes)))
    return facts


def _columns(header: Sequence[str]) -> dict[str, int]:
    """Which columns have the name, the time limit and the nodes."""
    patterns = {
        "name": r"(qos )?name|qos|partition",
        "time": r"(max(imum)? )?(wall ?time|time limit).*",
        "nodes": r"max(imum)? (nodes|size|resources).*",
    }
    found: dict[str, int] = {"name": 0}
    for key, pattern in patterns.items():
        for number, cell in enumerate(header):
            if re.fullmatch(pattern, cell.lower()):
                found[key] = number
                break
    return found


def _duration(text: str) -> int | None:
    """Seconds of ``2 days``, ``1.5 hours``; None for everything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(minute|min|hour|hr|day)s?", text.strip())
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _number_of_nodes(text: str) -> int | None:
    found = re.fullmatch(r"(\d[\d,]*)( nodes?)?", text.strip())
    return int(found[1].replace(",", "")) if found else None


def reframe_partitions(text: str) -> list[Fact]:
    """The partitions of a ReFrame configuration. The file is parsed, never executed."""
    facts = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Dict):
            continue
        entry = {
            key.value: value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
        if "scheduler" not in entry or _constant(entry["scheduler"]) != "slurm":
            continue
        access = " ".join(_texts(entry.get("access")))
        named = re.search(r"(?:-p |--partition=)(\S+)", access)
        name = named[1] if named else str(_constant(entry["name"]))
        facts.append(
            Fact(
                name, gpus=_find(entry.get("devices"), "num_devices"), memory_mib=_memory(entry.get("extras"))
            )
        )
    return facts


def _constant(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _texts(node: ast.AST | None) -> list[str]:
    """The texts in an expression."""
    nodes = ast.walk(node) if node is not None else ()
    return [
        child.value for child in nodes if isinstance(child, ast.Constant) and isinstance(child.value, str)
    ]


def _find(node: ast.AST | None, key: str) -> int | None:
    """The number that a key has in an expression."""
    for child in ast.walk(node) if node is not None else ():
        for name, value in zip(child.keys, child.values, strict=True) if isinstance(child, ast.Dict) else ():
            if name is not None and ast.unparse(name).strip("'\"") == key:
                number = _constant(value)
                return number if isinstance(number, int) else None
    return None


def _memory(extras: ast.AST | None) -> int | None:
    return _find(extras, "EXTRAS.MEM_PER_NODE")


def cime_queues(machine: str) -> Callable[[str], list[Fact]]:
    """Returns a parser of ``config_batch.xml`` for the queues of a machine; rows of one queue become one."""

    def parse(text: str) -> list[Fact]:
        found: dict[str, Fact] = {}
        root = ElementTree.fromstring(text)  # noqa: S314  # a known project's file, and nothing is trusted
        for system in root.iter("batch_system"):
            if system.get("MACH") != machine:
                continue
            for queue in system.iter("queue"):
                name, time, nodes = queue.text or "", queue.get("walltimemax"), queue.get("nodemax")
                old = found.get(name, Fact(name, "queue"))
                times = [old.time_s, seconds(time) if time else None]
                sizes = [old.nodes, int(nodes) if nodes else None]
                found[name] = Fact(name, "queue", _largest(times), _largest(sizes))
        return list(found.values())

    return parse


def _largest(numbers: Sequence[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


SOURCES = (
    Source(
        ("lumi-g",),
        "Lumi-supercomputer/lumi-userguide",
        "docs/runjobs/scheduled-jobs/partitions.md",
        limit_tables,
    ),
    Source(("lumi-g",), "Lumi-supercomputer/lumi-reframe-tests", "config/lumi.py", reframe_partitions),
    Source(("cirrus",), "EPCCed/cirrus-docs", "docs/user-guide/batch.md", limit_tables),
    Source(
        ("archer2-cpu", "archer2-gpu"),
        "ARCHER2-HPC/archer2-docs",
        "docs/user-guide/scheduler.md",
        limit_tables,
    ),
    *(
        Source((f"alps-{name}",), "eth-cscs/cscs-docs", f"docs/clusters/{name}.md", limit_tables)
        for name in ("clariden", "daint", "santis")
    ),
    *(
        Source(
            (f"alps-{name}",), "eth-cscs/cscs-reframe-tests", f"config/systems/{name}.py", reframe_partitions
        )
        for name in ("clariden", "daint", "santis")
    ),
    Source(
        ("snellius-a100", "snellius-h100"), "EESSI/test-suite", "config/surf_snellius.py", reframe_partitions
    ),
    Source(("marenostrum5",), "EESSI/test-suite", "config/bsc_marenostrum5.py", reframe_partitions),
    Source(
        ("frontier",), "E3SM-Project/E3SM", "cime_config/machines/config_batch.xml", cime_queues("frontier")
    ),
)


# comparison -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A value of ours and theirs; empty: it has none."""

    site: str
    what: str
    ours: str
    theirs: str
    where: str

    @property
    def differs(self) -> bool:
        return self.ours != self.theirs


def compare(name: str, site: Site, facts: Sequence[Fact], where: str) -> Iterator[Row]:
    """Compares a site file with the facts of one source. What either of them does not say is left out.

    A name that the site file lacks is a row only if it lists names of that kind, and the system is in use.
    """
    slurm = site.slurm or Slurm()
    tables: dict[str, Mapping[str, Limits]] = {"partition": slurm.partitions, "qos": slurm.qos}
    tables["queue"] = {**slurm.partitions, **slurm.qos}
    lists_names = {kind: bool(table) and site.status == "current" for kind, table in tables.items()}
    for fact in facts:
        what = f"{fact.kind} {fact.name}"
        ours = tables[fact.kind].get(fact.name)
        if ours is None and lists_names[fact.kind] and (fact.time_s or fact.nodes or fact.gpus):
            yield Row(name, what, "", "exists", where)
        for key, mine, theirs in _values(site, fact, ours) if ours is not None else ():
            if mine is not None and theirs is not None:
                yield Row(name, f"{what}: {key}", str(mine), str(theirs), where)


def _values(site: Site, fact: Fact, ours: Limits) -> Iterator[tuple[str, int | None, int | None]]:
    time = ours.max_time or max(ours.time_by_nodes.values(), key=seconds, default="")
    yield "minutes", seconds(time) // 60 if time else None, fact.time_s // 60 if fact.time_s else None
    yield "nodes", ours.max_nodes, fact.nodes
    if isinstance(ours, Partition):
        yield "GPUs of a node", site.node.gpus if ours.gpus is None else ours.gpus, fact.gpus
        used = {queue.partition for queue in site.slurm.queues.values()} if site.slurm else set()
        if fact.gpus and fact.name in used and site.node.memory:  # site.node describes these nodes
            yield "memory of a node, MiB", _mib(site.node.memory), fact.memory_mib


def _mib(size: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)", size).groups()  # type: ignore[union-attr]  # a Size
    return int(int(number) * _MIB[unit])


# command ----------------------------------------------------------------------------------------------------


def read(source: Source, checkout: Path | None) -> str:
    """The text of a source, from a clone or from GitHub.

    Args:
        source: the file.
        checkout: a folder with clones, bare or not: ``NAME`` or ``OWNER+NAME/repo``.

    Raises:
        OSError: there is no such file.
    """
    if checkout is None:
        answer = httpx.get(_RAW.format(repository=source.repository, path=source.path), timeout=30)
        if answer.status_code != 200:
            raise OSError(f"HTTP {answer.status_code}")
        return answer.text
    owner, _, name = source.repository.partition("/")
    for folder in (checkout / name, checkout / f"{owner}+{name}" / "repo"):
        if folder.is_dir():
            command = ["git", "-C", str(folder), "show", f"HEAD:{source.path}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise OSError(done.stderr.strip())
            return done.stdout
    raise OSError(f"no clone of {source.repository} in {checkout}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("sites", nargs="*", metavar="SITE", help="sites to compare; default: all")
    parser.add_argument("--all", action="store_true", help="print values that are the same, too")
    parser.add_argument(
        "--checkout", type=Path, metavar="DIR", help="a folder with clones of the repositories"
    )
    options = parser.parse_args(words)
    files = all_site_files(None)
    code = 0
    for source in SOURCES:
        names = [name for name in source.sites if name in files and name in (options.sites or source.sites)]
        if not names:
            continue
        try:
            facts = source.parse(read(source, options.checkout))
        # A text in another form ends in any error of a parser.
        except (OSError, httpx.HTTPError, SyntaxError, ValueError, LookupError, RecursionError) as e:
            print(f"{source.repository}:{source.path}: {visible(str(e))}", file=sys.stderr)
            code = 2
            continue
        if not facts:
            print(
                f"{source.repository}:{source.path}: no facts found: has its form changed?", file=sys.stderr
            )
            code = 2
        for name in names:
            for row in compare(
                name, read_site(name, files).site, facts, f"{source.repository}:{source.path}"
            ):
                if row.differs or options.all:
                    line = (
                        f"{row.site}: {row.what}: ours {row.ours or '-'}, theirs {row.theirs} ({row.where})"
                    )
                    print(visible(line))
                    code = max(code, int(row.differs))
    return code


if __name__ == "__main__":
    sys.exit(main())
