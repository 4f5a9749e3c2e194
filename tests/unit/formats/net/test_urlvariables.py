"""Which environment variables are put into which URLs."""

from __future__ import annotations

import pytest

from builder.core.errors import ConfigError
from builder.formats.net.urlvariables import UrlVariables, expanded, variables_in

CHANNEL = "https://host.example/t/$TOKEN/chan"


@pytest.fixture(autouse=True)
def values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "USER_NAME", "PASSWORD", "REGISTRY_PASSWORD", "BUILDER_CACHE", "OTHER", "ml"):
        monkeypatch.setenv(name, f"<{name}>")


@pytest.mark.parametrize(
    ("source", "url", "result"),
    [
        (CHANNEL, "https://host.example/t/$TOKEN/chan/x", "https://host.example/t/<TOKEN>/chan/x"),
        (CHANNEL, "https://host.example/t/${TOKEN}/other", "https://host.example/t/<TOKEN>/other"),
        (
            "https://me:pw@host.example/t/$TOKEN/c",
            "https://host.example/t/$TOKEN/c",
            "https://host.example/t/<TOKEN>/c",
        ),
        (
            "https://$USER_NAME:$PASSWORD@h.org/simple",
            "https://${USER_NAME}:${PASSWORD}@h.org/files/x.whl",
            "https://<USER_NAME>:<PASSWORD>@h.org/files/x.whl",
        ),
        ("https://h.org/x?key=$TOKEN", "https://h.org/x?key=$TOKEN", "https://h.org/x?key=<TOKEN>"),
    ],
)
def test_named(source: str, url: str, result: str) -> None:
    """A variable is replaced where the project names it."""
    variables = UrlVariables(("https://other.example/$OTHER", source))
    assert variables.expanded(url) == result and list(variables.missing(url)) == []


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/t/$TOKEN/chan/x",
        "http://host.example/t/$TOKEN/chan/x",
        "https://host.example:8443/t/$TOKEN/chan/x",
        "https://host.example@evil.example/t/$TOKEN/chan/x",
        "https://$TOKEN@host.example/t/x",
        "https://host.example/$TOKEN/x",
        "https://host.example.evil.example/t/$TOKEN/chan",
        "https://host.example\\@evil.example/t/$TOKEN/chan",
        "https://[/t/$TOKEN/chan",
    ],
)
def test_not_named(url: str) -> None:
    """Another host, scheme, port or place gets nothing."""
    variables = UrlVariables((CHANNEL, "https://host.example/plain"))
    assert variables.expanded(url) == url and "TOKEN" in list(variables.missing(url))


def test_other_names() -> None:
    """A source gives its own variables only, and builder's own are never given."""
    source = "https://h.org/$REGISTRY_PASSWORD/$BUILDER_CACHE/$TOKEN"
    url = source + "/$OTHER"
    variables = UrlVariables((source,))
    assert variables.expanded(url) == "https://h.org/$REGISTRY_PASSWORD/$BUILDER_CACHE/<TOKEN>/$OTHER"
    assert list(variables.missing(url)) == ["BUILDER_CACHE", "OTHER", "REGISTRY_PASSWORD"]


def test_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs of the project's files: a name that is not set, builder's own, and a whole URL are errors."""
    assert expanded(CHANNEL, "channels") == "https://host.example/t/<TOKEN>/chan"
    with pytest.raises(ConfigError, match="the environment variable NOT_SET is not set"):
        expanded("https://h.org/${NOT_SET}", "channels")
    with pytest.raises(ConfigError, match="REGISTRY_PASSWORD is builder's own variable"):
        expanded("https://h.org/${REGISTRY_PASSWORD}", "channels")
    monkeypatch.setenv("OTHER", "https://h.org/s3cr3t/c")
    with pytest.raises(ConfigError, match="OTHER is a whole URL, and would be in the lock") as error:
        expanded("$OTHER", "channels")
    assert "s3cr3t" not in f"{error.value} {error.value.hint}"


def test_dollar_in_a_password() -> None:
    """``robot$ml`` is a user name of Harbor, not a variable."""
    url = "https://robot$ml+ci:S3CR3T@h.org/$TOKEN"
    assert variables_in(url) == {"TOKEN"}
    assert expanded(url, "channels") == "https://robot$ml+ci:S3CR3T@h.org/<TOKEN>"
