"""The scripts in ``/.singularity.d``, written and read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from builder.formats.sif.singularity import (
    FOLDER,
    container_environment,
    environment_script,
    run_script,
)


def _shell(script: str, *args: str, env: dict[str, str] | None = None) -> str:
    command = [shutil.which("sh") or "/bin/sh", "-c", script, "sh", *args]
    return subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **(env or {})}, check=True, capture_output=True, text=True
    ).stdout


def test_environment_script() -> None:
    """The script sets the variables of the config, whatever the host or a base SIF sets."""
    values = {
        "PATH": "/opt/conda/bin:/bin:/usr/bin",
        "ODD": "a 'b' \"c\" $d `e` \\ %s",
        "TWO": "x\ny",
        "CONDA_PREFIX": "/opt/conda",
    }
    script = environment_script({**values, "not-a-name": "1"})
    show = script + "\nfor n in PATH ODD TWO CONDA_PREFIX; do eval printf '%s\\\\0' '\"$'$n'\"'; done"
    assert _shell(show).split("\0")[:-1] == list(values.values())
    host = _shell(show, env={"ODD": "host", "CONDA_PREFIX": "host", "PATH": "/usr/bin:/bin:/host"}).split(
        "\0"
    )
    assert host[:-1] == list(values.values())
    base = {"PATH": "/rocm:/bin:/usr/bin", "TWO": "x\ny", "ODD": "theirs"}
    above = environment_script({**values, "PATH": "/opt/conda/bin:/rocm:/bin:/usr/bin"}, base)
    assert "TWO" not in above
    assert _shell(above + "\necho $PATH; echo $ODD", env={"PATH": base["PATH"]}) == (
        "/opt/conda/bin:/rocm:/bin:/usr/bin\n" + " ".join(values["ODD"].split()) + "\n"
    )


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("export PYTHONPATH=/base/lib", True),
        ('export PYTHONPATH="${PYTHONPATH:-"/base/lib"}"', True),
        ("export PYTHONPATH=$(echo /base/lib)", True),
        ("export PYTHONHOME=/base PYTHONPATH=/base/lib", True),
        ("if true; then export PYTHONPATH=/base/lib; fi", True),
        ("export MYPYTHONPATH=/base/lib", False),
        ("unset PYTHONPATH", False),
    ],
)
def test_variables_that_serve_a_base_sif(line: str, hidden: bool) -> None:
    """What a base's scripts set for its own Python is unset, unless the image sets it."""
    base = container_environment({f"{FOLDER}/env/90-environment.sh": f"#!/bin/sh\n{line}\n"})
    assert ("PYTHONPATH" in base) == hidden
    show = '\nprintf %s "${PYTHONPATH-none}"'
    script = environment_script({"PATH": "/bin"}, base)
    assert ("unset PYTHONPATH" in script) == hidden
    assert _shell(f"{line}\n{script}{show}") == "none"
    for value in ("/own", ""):
        own = environment_script({"PATH": "/bin", "PYTHONPATH": value}, base)
        assert _shell(f"{line}\n{own}{show}") == value


def test_environment_of_apptainer() -> None:
    """Variables are read from the scripts that Apptainer writes; not those for the host and for apps."""
    files = {
        f"{FOLDER}/env/10-docker2singularity.sh": (
            '#!/bin/sh\nexport PATH="/a:/b"\nexport X="${X:-"one two"}"\n'
        ),
        f"{FOLDER}/env/90-environment.sh": (
            "export PATH=/opt/rocm/bin:$PATH\nY=1; export Y\nexport Z=$(date)\nexport Q='a b'\n"
        ),
        f"{FOLDER}/env/95-apps.sh": (
            'if test -n "${SINGULARITY_APPNAME:-}"; then\n'
            '    PATH="/scif/apps/${SINGULARITY_APPNAME:-}:$PATH"\n'
            '    LD_LIBRARY_PATH="/scif/apps/singularity/lib:$LD_LIBRARY_PATH"\n'
            "fi\n"
        ),
        f"{FOLDER}/env/99-base.sh": "export LD_LIBRARY_PATH=never\n",
        f"{FOLDER}/runscript": "export NEVER=1\n",
    }
    assert container_environment(files) == {"PATH": "/opt/rocm/bin:/a:/b", "X": "one two", "Q": "a b"}


@pytest.mark.parametrize(
    ("entrypoint", "command", "arguments", "expected"),
    [
        (["printf", "<%s>"], ["a b", "it's"], [], "<a b><it's>"),
        (["printf", "<%s>"], ["a b"], ["c", "$d"], "<c><$d>"),
        (["printf", "<%s>"], [], ["c"], "<c>"),
        ([], ["echo", "a  b"], [], "a  b\n"),
        ([], ["echo", "a"], ["echo", "-", "b"], "- b\n"),
        (["echo", "only"], [], [], "only\n"),
    ],
)
def test_run_script(entrypoint: list[str], command: list[str], arguments: list[str], expected: str) -> None:
    """The runscript combines entry point, command and arguments as the OCI does."""
    assert _shell(run_script(entrypoint, command), *arguments) == expected


def test_variables_that_double() -> None:
    """A script that doubles a variable in each line does not fill the memory."""
    script = "A=x\n" + 60 * "A=$A$A\n" + 60 * 'export PATH="$PATH:$PATH"\n'
    env = container_environment({f"{FOLDER}/env/94-environment.sh": script})
    assert all(len(value) <= 1 << 17 for value in env.values())
    many = "A=" + "x" * 100_000 + "\nB=" + "$A" * 60_000 + "\nC=a\0b\n"
    env = container_environment({f"{FOLDER}/env/94-environment.sh": many})
    assert set(env) == {"PATH", "A"}


def test_lines_that_repeat() -> None:
    """A line with thousands of beginnings is read in a time and with a memory that grow with its length."""
    served = container_environment({f"{FOLDER}/env/94-environment.sh": 2000 * "PYTHONPATH= "})
    assert len(served["PYTHONPATH"]) <= 200
    nested = 'A="' + 16_000 * "${B:-" + '"\nC=c\n'
    assert container_environment({f"{FOLDER}/env/94-environment.sh": nested})["C"] == "c"
