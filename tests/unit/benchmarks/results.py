"""Made results of a benchmark run."""

from __future__ import annotations

from typing import Any

from benchmarks.floor import STEPS


def repetition(seconds: float, cpu: float = 0.0, sent: int = 0, **more: Any) -> dict[str, Any]:
    """A repetition, as it is stored."""
    memory = {"rss": 2e8, "pss": 1e8}
    return {"seconds": seconds, "cpu": cpu or seconds, **memory, "sent": sent, "received": 10**7, **more}


def floor(cpu: float, unpacked: int = 2 * 10**9) -> dict[str, float]:
    """The machine's limit of ``cpu`` seconds."""
    steps = dict.fromkeys(STEPS, cpu / len(STEPS))
    return {**steps, "packed": unpacked // 2, "unpacked": unpacked, "files": 1000}


def builder_way(seconds: float, cpu: float, sent: int) -> dict[str, Any]:
    cold = repetition(seconds, cpu, sent, stages={"fetch": 1.0, "push": 2.0}, digest="sha256:1")
    return {
        "cold": [cold, {**cold, "seconds": seconds + 1}, {**cold, "seconds": seconds + 2}],
        "unchanged": [repetition(0.25)],
        "bumped": [repetition(1.0, sent=10**6)],
        "fresh": [repetition(2.0, sent=10**6)],
    }


def docker_way(seconds: float, cpu: float, sent: int) -> dict[str, Any]:
    return {
        "cold": [repetition(seconds, cpu, sent, rss=9e8, received=660 * 10**6)],
        "unchanged": [repetition(0.1, 0.3)],
        "bumped": [repetition(seconds, cpu / 2, sent)],
    }


def start(case: str, image: str, seconds: float) -> dict[str, Any]:
    return {
        "case": case,
        "tool": "docker",
        "image": image,
        "against": "docker, uv --compile-bytecode",
        "seconds": [seconds],
        "cpu": [seconds],
        "pull_seconds": [] if case.startswith("import") else [seconds / 2],
    }


def results() -> dict[str, Any]:
    """A run with two workloads and two points of the plot."""
    ways = {
        "builder": builder_way(20.0, 30.0, 750 * 10**6),
        "builder, bytecode: none": builder_way(7.0, 7.0, 650 * 10**6),
        "buildah, uv": {"cold": [repetition(130.0, 135.0, 650 * 10**6)]},
        "docker, uv": docker_way(60.0, 64.0, 650 * 10**6),
        "docker, uv --compile-bytecode": docker_way(150.0, 160.0, 800 * 10**6),
    }
    torch = {
        "title": "torch for CPU",
        "packages": 143,
        "ways": ways,
        "floor": floor(6.0),
        "same packages": {"count": 143, "only builder": ["tzdata"], "only docker": []},
        "sif": {
            "builder, flat": [repetition(5.0, size=440 * 10**6)],
            "apptainer build": [repetition(70.0, size=425 * 10**6)],
        },
        "start": [
            start("cold pull and start", "builder", 60.0),
            start("cold pull and start", "docker, uv --compile-bytecode", 80.0),
            start("pull and start after a bump", "builder", 20.0),
            start("pull and start after a bump", "docker, uv --compile-bytecode", 80.0),
            start("import, cold page cache", "builder, bytecode: none", 9.0),
            start("import, cold page cache", "docker, uv --compile-bytecode", 4.0),
        ],
    }
    cuda = {
        "title": "torch with CUDA",
        "packages": 70,
        "ways": {name: ways[name] for name in ("builder", "builder, bytecode: none")},
        "floor": floor(20.0),
        "sif": {"builder, flat": [repetition(19.0, size=3 * 10**9)]},
    }
    return {
        "date": "2026-01-02",
        "quick": False,
        "machine": {"cpu": "a processor", "cores": 2, "memory": 24 * 2**30, "load": 0.1},
        "workloads": {"torch": torch, "cuda": cuda},
        "skipped": {"conda: docker, micromamba": "micromamba is not installed"},
        "seconds": {"torch": 900.0, "all": 1500.0},
        "size": [point(10, 10**8, 1.0), point(300, 8 * 10**9, 40.0)],
    }


def point(packages: int, unpacked: int, cpu: float) -> dict[str, Any]:
    cold = [repetition(cpu / 2, cpu)]
    ways = {"builder": {"cold": cold}, "builder, bytecode: none": {"cold": cold}}
    return {"packages": packages, "ways": ways, "floor": floor(cpu / 1.5, unpacked)}
