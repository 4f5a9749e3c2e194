"""The benchmark as a program: there is a report whatever happens in it. No torch is needed here."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest

from tests.support.smoke import BENCHMARK, SCHEMA, SMOKE, Beginning, Result, load, run, with_torch


@pytest.fixture
def bench() -> ModuleType:
    return load()


# a report, whatever happens ------------------------------------------------------------------------------------------


def test_the_report_can_go_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-S", BENCHMARK, "--json", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "FAIL" in done.stdout
    assert json.loads(path.read_text())["verdict"] == "fail"


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", BENCHMARK, "--json", f"{tmp_path}/no/r.json"], capture_output=True, text=True
    )
    assert (
        done.returncode == 2 and "cannot write the report" in done.stderr and "Traceback" not in done.stderr
    )


# torch is not right ---------------------------------------------------------------------------------------------------


def test_torch_missing() -> None:
    result = run("--expect", "none", python=["-S"])  # -S: no site-packages
    assert result.verdict == "fail"
    assert result.failed == {"torch.import"}
    assert "no torch" in result.probe("torch.import")["seen"] and result.probe("torch.import")["advice"]
    assert all(m["status"] == "skip" for m in result.report["measurements"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "raise OSError('libcudart.so.12: cannot open shared object file: No such file or directory')",
            "libcudart.so.12",
        ),
        ("import a_package_that_is_not_there", "a_package_that_is_not_there"),
        ("raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
        ("", "AttributeError"),
        ("this is no Python", "SyntaxError"),
    ],
)
def test_torch_does_not_import(source: str, said: str, tmp_path: Path) -> None:
    result = run("--expect", "nvidia", env=with_torch(tmp_path, source))
    assert result.verdict == "fail" and "torch.import" in result.failed
    assert said in result.probe("torch.import")["seen"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV in torch.import"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL in torch.import"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL in torch.import"),
        ("import os; os._exit(0)", "ended by itself in torch.import"),
    ],
)
def test_torch_ends_the_process(source: str, said: str, tmp_path: Path) -> None:
    result = run("--expect", "none", env=with_torch(tmp_path, source))
    assert result.verdict == "fail" and result.failed == {"process"}
    assert said in result.probe("process")["seen"] and result.probe("process")["advice"]


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(1000)",
        # holds the interpreter's lock, as a hung driver may: no thread of the same process would ever run again
        "import ctypes; ctypes.PyDLL(None).sleep(1000)",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)",
    ],
)
def test_a_hang_is_ended_and_named(source: str, tmp_path: Path) -> None:
    started = time.monotonic()
    result = run("--expect", "none", "--timeout", "1.5", env=with_torch(tmp_path, source))
    assert time.monotonic() - started < 15
    assert result.verdict == "fail" and result.failed == {"watchdog"}
    assert "torch.import" in result.probe("watchdog")["seen"] and "1.5 s" in result.probe("watchdog")["seen"]


def test_what_libraries_print_does_not_get_into_the_report(tmp_path: Path) -> None:
    source = "import os; print('hello'); os.write(1, b'from C'); raise ImportError('x')"
    result = run(env=with_torch(tmp_path, source))
    assert result.failed == {"torch.import"} and "hello" in result.table


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_still_reports(number: int, tmp_path: Path) -> None:
    env = {
        **os.environ,
        **with_torch(tmp_path, f"open({str(tmp_path / 'here')!r}, 'w'); import time; time.sleep(1000)"),
    }
    command = [sys.executable, str(BENCHMARK), "--json", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    end = time.monotonic() + 20
    while not (tmp_path / "here").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    result = Result(subprocess.CompletedProcess(command, process.returncode, out, err))
    assert result.verdict == "error" and signal.Signals(number).name in result.probe("process")["seen"]


def test_the_child_dies_with_the_parent(tmp_path: Path) -> None:
    here = tmp_path / "pid"
    env = {
        **os.environ,
        **with_torch(
            tmp_path, f"import os, time; open({str(here)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
        ),
    }
    process = subprocess.Popen(
        [sys.executable, str(BENCHMARK)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    end = time.monotonic() + 20
    while not (here.exists() and here.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    child = int(here.read_text())
    process.kill()
    process.wait()
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


def test_a_hang_in_a_measurement_is_named() -> None:
    code = """
b.PROBES[:] = []
b.MEASUREMENTS[:] = [
    b.Measurement("first", lambda run: {"figure": 1}), b.Measurement("matmul.fp32", lambda run: time.sleep(1000))
]
"""
    for options in (("--timeout", "2"), ("--stall", "2")):
        result = Beginning(code).run(*options)
        assert result.failed == {"watchdog"} and "matmul.fp32 after 2 s" in result.probe("watchdog")["seen"]
        assert result.measurement("first")["figure"] == 1  # what was found before is kept


def test_nothing_measured_is_no_pass(bench: ModuleType) -> None:
    report = {"probes": [{"status": "pass"}], "measurements": [{"status": "skip"}]}
    assert bench.verdict(report) == "error"
    assert bench.verdict({**report, "measurements": [{"status": "pass"}]}) == "pass"
    assert bench.verdict({"probes": [{"status": "warn"}], "measurements": [{"status": "pass"}]}) == "warn"
    assert bench.verdict({"probes": [{"status": "warn"}], "measurements": [{"status": "fail"}]}) == "fail"


def test_a_measurement_whose_check_says_no_fails(bench: ModuleType) -> None:
    item = bench.found("x", lambda: {"median_s": 1.0, **bench.checked("version", "2", "1", False)})
    assert item["status"] == "fail" and "version" in item["seen"]


# the file -------------------------------------------------------------------------------------------------------------


def test_it_needs_nothing_but_python_3_8_and_torch() -> None:
    tree = ast.parse(BENCHMARK.read_text(), feature_version=(3, 8))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {n.partition(".")[0] for n in names} <= sys.stdlib_module_names | {"torch"}


def test_every_probe_and_measurement_is_documented(bench: ModuleType) -> None:
    text = (SMOKE.parents[1] / "docs" / "smoke.md").read_text()
    for name in (*bench.PROBES, *bench.MEASUREMENTS):
        assert f"`{name.id}`" in text, name.id
    for registered in (bench.PROBES, bench.MEASUREMENTS):
        assert len({x.id for x in registered}) == len(registered)


def test_the_schema_refuses_what_is_not_a_report() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    good = {
        "schema_version": 2,
        "verdict": "pass",
        "started": "2026-01-01T00:00:00Z",
        "duration_s": 1.0,
        "expect": {"gpu": "none", "architectures": [], "devices": None},
        "facts": {},
        "probes": [],
        "measurements": [
            {
                "id": "a.b",
                "status": "pass",
                "seen": "",
                "advice": "",
                "median_s": 1.0,
                "mad_s": 0.1,
                "samples_s": [0.9, 1.0, 1.1],
                "repeats": 3,
                "correctness": {"check": "c", "value": 1, "limit": 1, "ok": True},
            }
        ],
    }
    check = jsonschema.Draft202012Validator(SCHEMA)
    check.validate(good)
    for key in good:
        assert not check.is_valid({k: v for k, v in good.items() if k != key})
    for key in ("median_s", "mad_s", "samples_s", "repeats", "correctness", "advice"):
        measurement = {k: v for k, v in good["measurements"][0].items() if k != key}  # type: ignore[index]
        assert not check.is_valid({**good, "measurements": [measurement]})
    for key, value in (
        ("schema_version", 1),
        ("verdict", "fine"),
        ("started", "today"),
        ("more", 1),
        ("duration_s", -1),
    ):
        assert not check.is_valid({**good, key: value})
