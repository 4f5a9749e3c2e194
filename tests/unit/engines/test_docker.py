"""The Dockerfile of the docker engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.engines.bundle import PLACE
from builder.engines.docker import dockerfile
from builder.errors import ImageError
from tests.support.engines import install_inputs, request


def test_dockerfile(tmp_path: Path) -> None:
    labels = {"a.b": 'say "hi"', "source": "https://me:secret@h/x"}
    r = request(tmp_path, cmd=("python", "-c", 'print("$HOME")'), workdir="/app", labels=labels)
    text = dockerfile(
        r,
        install_inputs(tmp_path, [], PATH="/opt/conda/bin:/bin", QUOTED='a"b\\c$d'),
        "registry.example/base@sha256:1",
    )
    lines = text.splitlines()
    assert (
        lines.count("FROM registry.example/base@sha256:1") == 1
        and "FROM registry.example/base@sha256:1 AS install" in lines
    )
    assert f'RUN ["/bin/sh", "{PLACE}/install.sh"]' in lines
    assert 'COPY --from=install ["/opt/conda", "/opt/conda"]' in lines
    assert 'ENV QUOTED="a\\"b\\\\c\\$d"' in lines
    assert 'LABEL "a.b"="say \\"hi\\""' in lines and 'LABEL "source"="https://h/x"' in lines
    assert lines[-3:] == [
        "USER nobody",
        'ENTRYPOINT ["/opt/builder/entrypoint"]',
        'CMD ["python", "-c", "print(\\"$HOME\\")"]',
    ]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"User": "0\nRUN id"}, "the user '0\\nRUN id'"),
        ({"User": "$HOME"}, "the user '$HOME'"),
        ({"User": ["0"]}, "the user ['0']"),
        (
            {"OnBuild": ["ADD http://host.example/x /"]},
            "ONBUILD instructions (['ADD http",
        ),
    ],
)
def test_hostile_base(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    """Nothing of a base's config becomes an instruction."""
    inputs = install_inputs(tmp_path, [])
    base = replace(inputs.base, config={"config": config})
    with pytest.raises(ImageError) as caught:
        dockerfile(request(tmp_path), replace(inputs, base=base), "base")
    assert said in caught.value.message and "--engine layered" in caught.value.hint


def test_hostile_variables(tmp_path: Path) -> None:
    """The names of a base's variables are refused, values are quoted on one line."""
    for name in ("A\nRUN id\nENV B", "A B", 'A"', "A=B", "#A", "A\\"):
        with pytest.raises(ImageError, match="a variable with the name"):
            dockerfile(request(tmp_path), install_inputs(tmp_path, [], **{name: "x"}), "base")
    honest = {"BASH_FUNC_module%%": "() {\n x\n}", "A.b-c": "\r\x0b\u2028\0"}
    lines = dockerfile(request(tmp_path), install_inputs(tmp_path, [], **honest), "base").splitlines()
    assert 'ENV BASH_FUNC_module%%="() {\\n x\\n}"' in lines
    assert 'ENV A.b-c="\\x0d\\x0b\\u2028\\x00"' in lines
