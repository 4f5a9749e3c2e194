"""Environment files: what is read, compared with conda-lock's own parser, and what is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.lock import environment as module
from builder.lock.environment import read_environment
from builder.lock.inputs import Inputs
from tests.support.image_kit import recipe

FULL = """\
name: full
channels:
  - conda-forge
  - nodefaults
# a remark with [brackets] on a line of its own
dependencies:
  - python=3.11
  - pytorch =*=cuda*  # [linux]
  - cuda-version=12.4  # [linux]
  - pyobjc  # [osx]
  - arm-only  # [aarch64]
  - Lume-Model>=2.0.1
  - conda-forge::zlib
  - pip
  - pip:
    - --extra-index-url https://download.pytorch.org/whl/cpu
    - --find-links=wheels
    - Torch_Thing==2.1; sys_platform == "linux"   # a remark
    - winonly  # [win]
    - requests[socks]>=2,<3
"""


def environment(tmp_path: Path, text: str, platform: str = "linux-64"):
    path = tmp_path / "environment.yml"
    path.write_text(text)
    return read_environment(path, platform)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        environment(tmp_path, text)
    assert caught.value.hint
    return str(caught.value)


def test_reads_everything(tmp_path):
    env = environment(tmp_path, FULL)
    assert env.name == "full"
    assert env.channels == ("conda-forge",)
    assert [s.text for s in env.conda] == [
        "python=3.11",
        "pytorch =*=cuda*",
        "cuda-version=12.4",
        "Lume-Model>=2.0.1",
        "conda-forge::zlib",
        "pip",
    ]
    assert [s.text for s in env.pip] == ['Torch_Thing==2.1; sys_platform == "linux"', "requests[socks]>=2,<3"]
    assert env.extra_index_urls == ("https://download.pytorch.org/whl/cpu",)
    assert env.find_links == ("wheels",)
    assert env.requested == {
        "python",
        "pytorch",
        "cuda-version",
        "lume-model",
        "zlib",
        "pip",
        "torch-thing",
        "requests",
    }
    assert env.conda[1].where == f"{env.path}:8"


@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64"])
@pytest.mark.parametrize("source", ["full", "cpu.yml", "ml-training.yml", "synapse"])
def test_agrees_with_conda_lock(tmp_path, platform, source):
    """conda-lock's parser sees the same channels, conda names and pip names."""
    from conda_lock.src_parser.environment_yaml import parse_environment_file

    root = Path(__file__).parents[3]
    if source == "full":
        path = tmp_path / "environment.yml"
        # conda-lock supports neither options nor channel:: here, so it reads the file without them
        path.write_text(
            "".join(line for line in FULL.splitlines(True) if "--" not in line and "::" not in line)
        )
    elif source == "synapse":
        path = root.parent / "shared/data/synapse-ml/environment.yml"
        if not path.exists():
            pytest.skip("the Synapse data (../shared/data/synapse-ml) is not on this machine")
    else:
        path = tmp_path / source
        text = (root / "environments" / source).read_text()
        path.write_text("".join(line for line in text.splitlines(True) if "--" not in line))
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps({}))
    oracle = parse_environment_file(path, [platform], mapping_url=str(mapping))
    env = read_environment(path, platform)
    assert list(env.channels) == [c.url for c in oracle.channels]
    theirs = {(d.manager, d.name.lower().replace("_", "-")) for d in oracle.dependencies[platform]}
    ours = {("conda", s.name.replace("_", "-")) for s in env.conda} | {("pip", s.name) for s in env.pip}
    assert ours == theirs


def test_pip_is_implied(tmp_path):
    """A pip section implies the conda package pip, unless the file lists it."""
    env = environment(tmp_path, "channels: [c]\ndependencies:\n- python\n- pip:\n  - six\n")
    assert [s.text for s in env.conda] == ["python", "pip"]
    env = environment(tmp_path, "channels: [c]\ndependencies:\n- pip>=23\n- pip:\n  - six\n")
    assert [s.text for s in env.conda] == ["pip>=23"]
    env = environment(tmp_path, "channels: [c]\ndependencies:\n- python\n- pip:\n")
    assert [s.text for s in env.conda] == ["python"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("channels: [c]\ndependencies:\n  - '>=1'\n", "environment.yml:3: '>=1' is not a conda spec"),
        (
            "channels: [c]\ndependencies:\n  - pip:\n    - a ; " + "(" * 900,
            "is not a pip requirement: ",
        ),
        ("channels: [c]\ndependencies:\n  - a  # [gpu]\n", "environment.yml:3: unknown selector [gpu]"),
        ("channels: [c]\n", "environment.yml:1: dependencies: must be a list"),
        ("a: &a {b: c}\n<<: *a\ndependencies: [a]\n", "environment.yml: a key is <<"),
        ("channels: [c]\ndependencies: [a]\nvariables: [b]\n", "environment.yml:3: variables:"),
        (
            "channels: [c]\nplatforms: [win-64]\ndependencies: [a]\n",
            "environment.yml:2: platforms: does not list linux-64",
        ),
    ],
)
def test_bad_files(tmp_path, text, said):
    """What is wrong is named with file and line."""
    assert said in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("dependancies: [a]\n", ":1: unknown key 'dependancies'", "did you mean 'dependencies:'?"),
        (
            "dependencies: [a]\npip: [b]\n",
            ":2: pip: builder does not support",
            "below dependencies: as the item '- pip:'",
        ),
        ("dependencies:\n- numpy: 1.26\n", ":2: unknown section 'numpy'", "write '- numpy=1.26'"),
        ("dependencies:\n- sel(win): b\n", ":2: unknown section 'sel(win)'", "'- b  # [linux]'"),
        ("dependencies: [a]\ncategory: dev\n", ":2: category: builder does not", "category: main"),
        ("channel_priority: flexible\n", ":1: channel_priority: builder does not", "priority: strict"),
        ("allow-pypi-requests: false\n", ":1: allow-pypi-requests: builder", "allow-pypi-requests: true"),
        ("dependencies:\n- pip: rich\n", ":2: pip: must be a list", "write pip: [rich]"),
        (
            "dependencies:\n  python: 3.11\n",
            ":1: dependencies: must be a list",
            "- PACKAGE=VERSION",
        ),
    ],
)
def test_mistakes(tmp_path, text, said, hint):
    with pytest.raises(ConfigError) as caught:
        environment(tmp_path, text)
    assert said in caught.value.message and hint in caught.value.hint


def test_known_keys():
    """The keys of CEP 24, conda 26, mamba 2.4 and conda-lock 4 have a rule; a typo in one is an error."""
    published = (
        "allow-pypi-requests category channels dependencies name pip-repositories platforms prefix variables"
    )
    assert set(published.split()) <= set(table(module.__file__, "environment_keys.yaml"))


def test_keys_without_effect(tmp_path):
    """Keys that builder has anyway, or that say where an environment is, or that no tool reads."""
    more = "prefix: /opt/x\ncategory:\nchannel_priority: strict\nallow-pypi-requests: true\nx-team: core\n"
    plain = environment(tmp_path, "channels: [c]\ndependencies: [a]\n")
    assert environment(tmp_path, f"channels: [c]\ndependencies: [a]\n{more}") == plain


def test_no_password_in_errors(tmp_path):
    for line in (
        "a @ git+https://me:hunter2@host.example/a@",
        "git+https://me:hunter2@host.example/",
        "hg+https://me:hunter2@host.example/a",
        "https://me:hunter2@host.example/a.exe",
        "https://me:hunter2@host.example/a.tar.gz#sha256=1",
        "--find-links 'https://me:hunter2@h/x",
    ):
        said = refusal(tmp_path, f'channels: [c]\ndependencies:\n  - pip:\n    - "{line}"\n')
        assert "hunter2" not in said and "environment.yml:4" in said


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(ConfigError, match="no such environment file"):
        read_environment(tmp_path / "nowhere.yml", "linux-64")
    (tmp_path / "b.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="b.yml:1: not UTF-8 text"):
        read_environment(tmp_path / "b.yml", "linux-64")


def test_long_line(tmp_path):
    """Lines have no bound: programs write files of one line."""
    found = environment(tmp_path, "dependencies:\n- a #" + " #" * 100_000)
    assert [spec.text for spec in found.conda] == ["a"]
    written_by_a_program = json.dumps({"dependencies": [f"package{n}=1.0" for n in range(1000)]})
    assert len(environment(tmp_path, written_by_a_program).conda) == 1000


@pytest.mark.parametrize(
    ("link", "read"),
    [
        ("$WHEELS", "https://host.example/wheels"),
        ("$WHEELS/$REGISTRY_PASSWORD", "https://host.example/wheels/$REGISTRY_PASSWORD"),
        ("https://$TOKEN@host.example/x", "https://abc@host.example/x"),
    ],
)
def test_variables_of_find_links(tmp_path, monkeypatch, link, read):
    """A variable may hold the whole URL; builder's own variables are never put into one."""
    monkeypatch.setenv("WHEELS", "https://host.example/wheels")
    monkeypatch.setenv("TOKEN", "abc")
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret")
    asking = recipe(tmp_path, pip={"find_links": [link]})
    assert Inputs.read(asking).find_links == (read,)
    (tmp_path / "wheels").mkdir()
    assert Inputs.read(asking).find_links == (read, str(tmp_path / "wheels"))
