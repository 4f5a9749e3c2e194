"""``builder registry``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.registry.client import RegistryClient
from builder.registry.credentials import ANONYMOUS
from tests.support.cli import Cli
from tests.support.fakeregistry import FakeRegistry
from tests.support.images import make_layer, make_test_image, push_tagged
from tests.support.project import TinyProject


@pytest.fixture
def fake(tiny: TinyProject, tmp_path: Path) -> Iterator[FakeRegistry]:
    with FakeRegistry() as fake, RegistryClient(fake.host, ANONYMOUS) as client:
        for label, tags in (("old", ["20.01"]), ("new", ["20.02", "latest"])):
            push_tagged(make_test_image([make_layer(tmp_path, "layer")], label), client, "team/t", tags)
        yield fake


def test_dry_run_first(do: Cli, fake: FakeRegistry) -> None:
    command = ["registry", "prune", f"{fake.host}/team/t", "--keep", "12 months"]
    shown = do(*command)
    assert shown.code == 0 and "would delete 1 tags" in shown.out and "--delete" in shown.out
    assert "20.01" in shown.out and "20.02 stays: latest names the same image" in shown.err
    assert fake.count("DELETE") == 0
    answer = do(*command, "--json").json
    assert list(answer["tags"]) == ["20.01"] and answer["deleted"] is None

    done = do(*command, "--delete", "--json").json
    assert done["deleted"] == answer["manifests"] and fake.count("DELETE") == 1
    assert "nothing is old enough" in do(*command, "--delete").out


def test_refused(do: Cli, fake: FakeRegistry) -> None:
    fake.deletes = False
    command = ["registry", "prune", f"{fake.host}/team/t", "--keep", "12 months"]
    assert do(*command).code == 0
    refused = do(*command, "--delete")
    assert refused.code == 9 and "retention rule" in refused.err


def test_wrong_arguments(do: Cli, tiny: TinyProject) -> None:
    named = do("registry", "prune", "host.example/team/t:latest", "--keep", "12 months")
    assert named.code == 2 and "write host.example/team/t" in named.err
    rule = do("registry", "prune", "host.example/team/t", "--keep", "latest")
    assert rule.code == 2 and "how many months" in rule.err
