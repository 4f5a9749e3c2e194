"""The copy of a report that people send in: it has no field that is not listed here, and no name."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from builder.bench.measurements import MEASUREMENTS
from builder.smoke.schema import could_not_run, report_problem
from builder.smoke.share import MOST, ShareError, contents, share
from tests.support.image_kit import recipe
from tests.support.reports import HOST, USER, a100, cpu, measured, report, rich
from tests.unit.smoke.test_damaged_reports import JUNK, damaged, places

STATE = {"clock_mhz", "power_w", "temperature_c", "throttled"}
#: Every field of the copy. A new one is reviewed, and added here and in docs/smoke.md.
LISTED = {
    "shared_report builder runs",
    "runs: month verdict duration_s launch framework build versions machine cpu memory_gib variables",
    "runs: devices probes measurements",
    "runs.launch: ranks nodes",
    "runs.versions: python framework cuda hip nccl cudnn driver glibc kernel",
    "runs.cpu: model cores usable_cores physical_cores",
    "runs.devices: gpu node rank name architecture memory_bytes multiprocessors power_limit_w driver",
    "runs.devices: pcie nvlink partition compute_mode mig",
    "runs.devices.nvlink: links active",
    "runs.devices.pcie: generation width max_generation max_width",
    "runs.probes: id status",
    "runs.measurements: id status on gpu backend algorithm correct size repeats members gpus nodes first_s",
    "runs.measurements: flop bytes lost_fraction round_trip_us sizes latencies pairs ranks",
    "runs.measurements.sizes: size repeats algorithm",
    "runs.measurements.latencies: size median_us",
    "runs.measurements.pairs: from to gb_per_s direct",
    "runs.measurements.ranks: gpu node rank status",
}
LOADED = ("runs.measurements", "runs.measurements.ranks")
FIGURES = (*LOADED, "runs.measurements.sizes")
HOSTILE = f"/users/{USER}/x {HOST}.cluster.example 10.0.0.7 GPU-1234abcd-0000-4000-8000-123456789abc"


def listed() -> set[str]:
    """The paths in LISTED, and the figures with their units."""
    paths = set()
    for line in LISTED:
        before, _, names = line.rpartition(": ")
        paths |= {f"{before}.{name}".lstrip(".") for name in names.split()}
    units = ("gflop_per_s", "gb_per_s", "samples_per_s", "s", "ms", "us", "fraction")
    statistics = ("median", "mad", "sustained", "burst")
    paths |= {f"{at}.{statistic}_{unit}" for at in FIGURES for statistic in statistics for unit in units}
    return paths | {f"{at}.{name}" for at in LOADED for name in STATE}


def paths_of(value: Any, at: str = "") -> Iterator[str]:
    """The path of every key, without the numbers of lists and the names of variables."""
    if isinstance(value, list):
        for item in value:
            yield from paths_of(item, at)
    elif isinstance(value, dict):
        for key, item in value.items():
            path = f"{at}.{key}".lstrip(".")
            if at != "runs.variables":
                yield path
            yield from paths_of(item, path)


def texts_of(value: Any) -> Iterator[str]:
    """All keys and texts."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, str):
        yield value


def test_listed_fields() -> None:
    """The copy has no field that is not listed; and this report has nearly all of those."""
    assert report_problem(rich()) == ""
    document = share([rich(), cpu()], []).document
    found = set(paths_of(document))
    assert found <= listed()
    assert len(found) > 60


def test_values() -> None:
    """What is kept, and in which form."""
    shared = share([rich()], [])
    (run,) = shared.document["runs"]
    assert shared.left_out == () and shared.data.decode("ascii").endswith("}\n")
    assert run["month"] == "2026-11" and run["duration_s"] == 41.5 and run["versions"]["kernel"] == "5.14.21"
    assert (run["framework"], run["versions"]["framework"]) == ("torch", "2.13.0+cu130")
    assert run["memory_gib"] == 512 and run["cpu"]["model"] == "AMD EPYC 7763"
    assert run["variables"] == {
        "CUDA_VISIBLE_DEVICES": "set",
        "FI_PROVIDER": "set",
        "LD_PRELOAD": "set",
        "NCCL_NET": "set",
        "NCCL_SOCKET_IFNAME": "set",
        "OMP_NUM_THREADS": 8,
        "TZ": "set",
    }
    assert [(d["gpu"], d["node"], d["name"]) for d in run["devices"]] == [
        ("gpu1", "node1", "NVIDIA A100-SXM4-40GB"),
        ("gpu2", "node1", "NVIDIA A100-SXM4-40GB"),
    ]
    bf16 = run["measurements"][0]
    assert [(r["gpu"], r["throttled"]) for r in bf16["ranks"]] == [
        ("gpu1", ["power cap"]),
        ("gpu2", ["power cap"]),
    ]
    assert (bf16["size"], bf16["sustained_gflop_per_s"], bf16["correct"]) == (8192, 240e3, True)


def test_nothing_identifies() -> None:
    """No name, path, address, number of a device or a job, and no free text is left."""
    text = share([rich()], []).data.decode()
    for name in (HOST, "nid", USER, "byron", "30417", "465000000", "1234abcd", "16503210", "13:00", "cray"):
        assert name not in text, name
    for name in ("/", "CET", "Zurich", "secret-lib", "26.11", "typically", "samples", "sha256", "a100"):
        assert name not in text.replace("memory.copy", ""), name


def test_same_gpu() -> None:
    """The same GPU has the same number in all runs; another one has another."""
    first, again, other = rich(), rich(), rich()
    again["facts"]["devices"].reverse()
    other["facts"]["devices"][0]["uuid"] = "GPU-9"
    runs = share([first, again, other], []).document["runs"]
    assert [[d["gpu"] for d in run["devices"]] for run in runs] == [
        ["gpu1", "gpu2"],
        ["gpu2", "gpu1"],
        ["gpu3", "gpu2"],
    ]


def test_names_in_values() -> None:
    """A text that contains the name of a host, a user or a job is left out, and named without its value."""
    made = rich()
    made["facts"]["cpu"]["model"] = "AMD EPYC p00423"
    made["facts"]["devices"][0]["host"] = "p00423.site.example"
    shared = share([made], [])
    assert "p00423" not in shared.data.decode() and shared.left_out == ("cpu.model",)
    for name in ("ubuntu", "a100", "7763", "nvls.example.org"):  # they identify nobody
        assert share([rich()], [name]).left_out == (), name


@pytest.mark.parametrize(
    "value",
    [
        "/home/x",
        "eve@example.org",
        "10.0.0.7",
        "fe80::1",
        "9c:63:c0:00:11:22",
        "9c-63-c0-00-11-22",
        "GPU-1234567",
        "oslo-n1 x",
        "Zürich",
        "x" * 81,
        "a\nb",
    ],
)
def test_texts(value: str) -> None:
    """A text that looks like a path, an address or a name, or that is long, is left out."""
    made = rich()
    made["facts"]["cpu"]["model"] = value
    made["measurements"][0] |= {"throttled": [value, "power cap"]}
    shared = share([made], ["oslo-n1.example.org"])
    assert value not in json.dumps(shared.document, ensure_ascii=False)
    assert shared.document["runs"][0]["measurements"][0]["throttled"] == ["power cap"]
    assert set(shared.left_out) == {"cpu.model", "measurements.throttled"}


def test_words_of_another_machine() -> None:
    """A name that neither the report nor this machine knows is no word of the benchmark."""
    made = rich()
    made["measurements"][0] |= {"backend": "alice", "algorithm": "node-gpu017", "throttled": ["alice"]}
    made["measurements"][0] |= {"size": "alice", "sizes": [{"size": 1, "algorithm": "node-gpu017"}]}
    made["facts"]["devices"][0] |= {"compute_mode": "alice", "partition": "ALICE"}
    shared = share([made], [])
    assert not re.search("alice|gpu017", shared.data.decode(), re.IGNORECASE)
    fields = ("backend", "algorithm", "throttled", "size", "sizes.algorithm")
    expected = {f"measurements.{key}" for key in fields} | {"devices.compute_mode", "devices.partition"}
    assert set(shared.left_out) == expected


@pytest.mark.parametrize("host", ["node1", "gpu1"])
def test_host_named_as_a_number(host: str) -> None:
    """The numbers of GPUs and nodes stay, where a host has such a name."""
    made = json.loads(json.dumps(rich()).replace(HOST, host))
    shared = share([made], [host, "x" * 10_000_000])
    assert shared.left_out == ()
    assert [(d["gpu"], d["node"]) for d in shared.document["runs"][0]["devices"]] == [
        ("gpu1", "node1"),
        ("gpu2", "node1"),
    ]


def test_hostile() -> None:
    """Names in every text of a report: none of them is in the copy."""

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: spoiled(v, k) for k, v in value.items()} | {HOSTILE: HOSTILE, f"median_{HOST}": 1.0}
        if isinstance(value, list):
            return [spoiled(v, key) for v in value] + [HOSTILE]
        keep = ("schema_version", "started", "status", "verdict", "id", "device", "repeats")
        return f"{value} {HOSTILE}" if isinstance(value, str) and key not in keep else value

    made = spoiled(rich())
    made["measurements"] = [m for m in made["measurements"] if isinstance(m, dict)]
    made["probes"] = [p for p in made["probes"] if isinstance(p, dict)]
    made["measurements"][0]["id"] = f"node.{HOST}"
    shared = share([made], [])
    text = shared.data.decode()
    assert not re.search(rf"{HOST}|cluster|users|ada|byron|10\.0\.0\.7|1234abcd", text)
    assert set(paths_of(shared.document)) <= listed()
    assert "measurements.id" in shared.left_out


@pytest.mark.parametrize(
    "junk", ["💥", "\ud800", "ａｄａ", "x" * 100_000, "\x1b[31m", "1" * 5000, 10**400, 1e308], ids=repr
)
def test_unusual_values(junk: Any) -> None:
    """Unicode, huge texts and numbers end in a copy without them, in ASCII."""
    made = rich()
    made["facts"]["cpu"] = {"model": junk, "cores": junk, "clock_mhz": junk}
    made["facts"]["devices"][0] |= {"name": junk, "driver": junk, "memory_bytes": junk, "rank": junk}
    made["measurements"][0] |= {
        "backend": junk,
        "size": junk,
        "ranks": [junk, {"host": junk, "device": junk}],
    }
    made["measurements"].append({**measured("matmul.fp16", 2.0), "device": f"cuda:{junk}"})
    made["image"]["packages"] = {junk: junk, "torch": junk} if isinstance(junk, str) else {}
    data = share([made], []).data
    assert data.isascii() and len(data) < 50_000


def test_many() -> None:
    """Thousands of GPUs are cut, and that is said."""
    made = rich()
    made["facts"]["devices"] *= 2100
    shared = share([made], [])
    assert shared.left_out == ("devices",) and len(shared.document["runs"][0]["devices"]) == MOST


def test_damage() -> None:
    """A damaged report that can be read can be shared, and nothing else gets into the copy."""
    rng, value, shared = random.Random(5), rich(), 0
    for m in value["measurements"]:
        for key in [k for k in m if k.startswith("samples_")]:
            m[key] = m[key][:1]
    for at in rng.sample(places(value), 250):
        made = json.loads(json.dumps(damaged(value, at, rng.choice([*JUNK, HOSTILE]), rng.random() < 0.2)))
        if report_problem(made) or not made["measurements"]:
            continue
        copied = share([made], [])
        assert set(paths_of(copied.document)) <= listed()
        assert not any(HOST in text or USER in text for text in texts_of(copied.document)), at
        contents(copied.document)
        shared += 1
    assert shared > 100


def test_nothing_to_share() -> None:
    """A test that did not run has no figures."""
    made = could_not_run(recipe(), "runner", "no", "")
    with pytest.raises(ShareError, match="no report has a measurement"):
        share([made], [])


def test_old_report() -> None:
    """Reports without uuid, node and clocks can be shared, too."""
    (run,) = share([a100()], []).document["runs"]
    assert run["devices"][0]["gpu"] == "gpu1" and "uuid" not in run["devices"][0]
    lines = contents(share([a100(), cpu()], []).document)
    assert "2 run(s) of 2026-11" in lines[0] and "1 x NVIDIA A100-SXM4-40GB" in lines[0]
    assert "rare GPU" in lines[2] and "uploads nothing" in lines[2]


@pytest.mark.parametrize(
    "name",
    [
        "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        "AMD Instinct MI250X / MI250",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA Rubin R100 288GB",  # a GPU that did not exist when this was written
    ],
)
def test_hardware(name: str) -> None:
    """Names of hardware are shared as the driver reports them."""
    made = rich()
    made["facts"]["devices"][0]["name"] = made["facts"]["cpu"]["model"] = name
    (run,) = share([made], []).document["runs"]
    assert run["devices"][0]["name"] == run["cpu"]["model"] == name


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("2.11.0+site", "2.11.0"),
        ("2.13.0+cu130", "2.13.0+cu130"),
        ("2.13.0+cu130site", "2.13.0"),
        ("12.8.4.1", "12.8.4"),  # four numbers would look like an address
        ("5.14.0-427.el9_site", "5.14.0"),
        ("ada", None),
        (None, None),
    ],
)
def test_version(value: Any, known: str | None) -> None:
    """Versions end where a site adds its own name."""
    made = rich()
    made["facts"]["driver"] = value
    assert share([made], []).document["runs"][0]["versions"].get("driver") == known


def test_collectives() -> None:
    """Latencies by size, and the bandwidth of each pair of GPUs."""
    pairs = [{"from": 0, "to": 1, "gb_per_s": 180.0, "direct": True, "host": HOST}]
    latencies = [{"size": 8, "median_us": 21.5}]
    made = report([measured("allreduce.node", 230.0, latencies=latencies, pairs=pairs, gpus=2, nodes=1)])
    (item,) = share([made], []).document["runs"][0]["measurements"]
    assert item["latencies"] == latencies and (item["gpus"], item["nodes"]) == (2, 1)
    assert item["pairs"] == [{"from": 0, "to": 1, "gb_per_s": 180.0, "direct": True}]


def test_measurement_ids() -> None:
    """All measurements of the benchmark can be shared."""
    made = report([measured(m.id, 2.0, "s") for m in MEASUREMENTS])
    shared = share([made], [])
    assert [m["id"] for m in shared.document["runs"][0]["measurements"]] == [m.id for m in MEASUREMENTS]


def test_probe_ids() -> None:
    """What the ranks together found is shared, too."""
    shared = share([report([measured("launch", 4.0, "us")], probes=[("ranks.even", "warn")])], [])
    assert shared.document["runs"][0]["probes"] == [{"id": "ranks.even", "status": "warn"}]
    assert not shared.left_out
