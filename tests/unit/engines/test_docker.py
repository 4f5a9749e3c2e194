"""The Dockerfile of the docker engine."""

from __future__ import annotations

from pathlib import Path

from builder.engines.bundle import PLACE
from builder.engines.docker import dockerfile
from tests.support.engines import install_inputs, request


def test_dockerfile(tmp_path: Path) -> None:
    r = request(tmp_path, cmd=("python", "-c", 'print("$HOME")'), workdir="/app", labels={"a.b": 'say "hi"'})
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
    assert 'LABEL "a.b"="say \\"hi\\""' in lines
    assert lines[-3:] == [
        "USER nobody",
        'ENTRYPOINT ["/opt/builder/entrypoint"]',
        'CMD ["python", "-c", "print(\\"$HOME\\")"]',
    ]
