"""``recipes/_policy.yaml``: what it may say, and how a mistake is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.config.policy import POLICY_FILE, find_policy, has_policy


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / POLICY_FILE
    path.parent.mkdir()
    return path


def test_values(tmp_path: Path, policy: Path) -> None:
    """Keys are relative to the folder of the file; by default everything must be attached, of any age."""
    policy.write_text("keys: [release.pub, ../other/second.pub]\n")
    found = find_policy(tmp_path)
    assert found is not None
    assert found.key_files == (policy.parent / "release.pub", policy.parent / "../other/second.pub")
    assert found.require == ("sbom", "provenance", "smoke") and found.max_age_days is None
    policy.write_text("keys: [/etc/team.pub]\nrequire: []\nmax_age_days: 40\n")
    found = find_policy(tmp_path)
    assert found is not None and found.key_files == (Path("/etc/team.pub"),)
    assert found.require == () and found.max_age_days == 40


def test_none(tmp_path: Path, policy: Path) -> None:
    """A link that leads nowhere is a policy that cannot be read: not the same as none."""
    assert find_policy(tmp_path) is None
    policy.symlink_to("away.yaml")
    assert has_policy(tmp_path)
    with pytest.raises(ConfigError, match=r"_policy\.yaml"):
        find_policy(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("require: [sbom]\n", "1: keys: this key is required", "add the line keys: VALUE"),
        ("keys: []\n", "1: keys: must have a value, and has none", "write keys: [VALUE]"),
        ("keys: a.pub\n", "1: keys: must be a list, and is text", "write keys: [a.pub]"),
        ("keys: [1]\n", "1: keys.0: must be text, and is a number", 'put it into quotes: keys: ["1"]'),
        (
            "keys: [a.pub]\nrequire: [licence]\n",
            "2: require.0: 'licence' is not one of sbom, provenance, smoke",
            "write require: sbom or provenance or smoke",
        ),
        (
            "keys: [a.pub]\nmax_age_days: 0\n",
            "2: max_age_days: must be greater than or equal to 1, and is 0",
            "correct max_age_days:",
        ),
        (
            "keys: [a.pub]\nmax_age_days: 99999999999\n",
            "2: max_age_days: must be less than or equal to 36500, and is 99999999999",
            "correct max_age_days:",
        ),
        (
            "keys: [a.pub]\nmax_age: 3\n",
            "2: max_age: unknown key; did you mean max_age_days?",
            "write max_age_days:",
        ),
    ],
)
def test_mistakes(tmp_path: Path, policy: Path, text: str, problem: str, hint: str) -> None:
    """The message names file, line and key; the hint is what to write."""
    policy.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_policy(tmp_path)
    assert f"{policy}:{problem}" in caught.value.message.splitlines()
    assert hint in caught.value.hint.split("; ") and caught.value.exit_code == 3


@pytest.mark.parametrize("text", ["", "- a.pub\n", "a.pub\n"])
def test_no_mapping(tmp_path: Path, policy: Path, text: str) -> None:
    policy.write_text(text)
    with pytest.raises(ConfigError, match="not a mapping of keys"):
        find_policy(tmp_path)
