"""Where credentials come from, and challenges."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from builder.core.errors import RegistryError
from builder.formats.registry import credentials
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.credentials import (
    ANONYMOUS,
    Credentials,
    are_for,
    environment_credentials,
    find_credentials,
    ignore,
)
from tests.support.fakeregistry import FakeRegistry, Reply
from tests.support.reporters import Warnings

ROBOT = "robot$m558+perlmutter-nersc-gov"


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and no credentials of this machine."""
    monkeypatch.setattr(credentials, "RUN", tmp_path / "run-containers")
    monkeypatch.setattr(credentials, "PODMAN", tmp_path)
    return tmp_path


@pytest.fixture
def write(home: Path) -> Callable[..., Path]:
    def write(name: str, data: Any, mode: int = 0o600) -> Path:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        path.chmod(mode)
        return path

    return write


def env(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin", **more}


def environment(variables: Mapping[str, str]) -> Credentials | None:
    """The credentials in these variables alone."""
    with mock.patch.dict(os.environ, variables, clear=True):
        return environment_credentials()


def find(
    host: str, repository: str, variables: Mapping[str, str], warn: Callable[[str], None] = ignore
) -> Credentials:
    """The credentials in the files of an environment."""
    with mock.patch.dict(os.environ, variables, clear=True):
        return find_credentials(host, repository, warn)


def helper(home: Path, name: str, script: str) -> None:
    path = home / "bin" / f"docker-credential-{name}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_names_with_a_dollar() -> None:
    """The variables are taken literally, with $ as an ordinary character."""
    found = environment({"REGISTRY_USER": ROBOT, "REGISTRY_PASSWORD": "$HOME:x"})
    assert found is not None
    assert base64.b64decode(found.basic.removeprefix("Basic ")).decode() == f"{ROBOT}:$HOME:x"
    assert environment({}) is None


@pytest.mark.parametrize("name", ["REGISTRY_USER", "REGISTRY_PASSWORD"])
def test_half_of_the_credentials(name: str) -> None:
    """One variable without the other is an error that does not show the value."""
    with pytest.raises(RegistryError, match=rf"{name} is set but REGISTRY_\w+ is not") as caught:
        environment({name: "s3cret"})
    assert "s3cret" not in str(caught.value)


def test_no_secrets_in_repr() -> None:
    """repr shows no secrets."""
    assert "s3cret" not in repr(Credentials("u", "s3cret", "s3cret", "there"))


def test_docker_config(home: Path, write: Callable[..., Path]) -> None:
    """Docker's config.json, also in the folder of DOCKER_CONFIG."""
    path = write(
        ".docker/config.json",
        {"auths": {"https://index.docker.io/v1/": auth("hub", "a:b"), "ghcr.io": auth("me", "token")}},
    )
    hub = find("registry-1.docker.io", "library/debian", env(home))
    assert (hub.username, hub.password) == ("hub", "a:b")
    assert find("docker.io", "", env(home)) == hub
    assert find("ghcr.io", "o/n", env(home)).source == f"{path} (ghcr.io)"
    assert find("elsewhere.example", "o/n", env(home)) == ANONYMOUS
    moved = write("other/config.json", {"auths": {"ghcr.io": auth("other", "x")}})
    assert find("ghcr.io", "", env(home, DOCKER_CONFIG=str(moved.parent))).username == "other"


def test_order_of_files_and_keys(home: Path, write: Callable[..., Path]) -> None:
    """podman's file counts before Docker's, and the longest key that contains the repository counts."""
    write(
        ".docker/config.json",
        {"auths": {"quay.io": auth("docker", "x"), "only.example": auth("docker", "x")}},
    )
    write(
        "run/containers/auth.json",
        {
            "auths": {
                "quay.io": auth("all", "x"),
                "quay.io/org": auth("org", "x"),
                "quay.io/org/n": auth("n", "x"),
            }
        },
    )
    where = env(home, XDG_RUNTIME_DIR=str(home / "run"))
    assert find("quay.io", "org/n", where).username == "n"
    assert find("quay.io", "org/name", where).username == "org"
    assert find("quay.io", "organisation/n", where).username == "all"
    assert find("only.example", "x", where).username == "docker", "what podman does not know, docker may"


@pytest.mark.parametrize(
    ("sentence", "owner", "runtime", "found"),
    [
        ("a login by su", os.getuid(), "", True),
        ("another user made the folder", os.getuid() + 1, "", False),
        ("a session has its own folder", os.getuid(), "/run/user/1", False),
    ],
)
def test_folder_of_podman_without_a_session(
    sentence: str, owner: int, runtime: str, found: bool, write: Callable[..., Path], home: Path
) -> None:
    """Without XDG_RUNTIME_DIR, podman login of an ordinary user writes below /tmp; others may, too."""
    path = write(f"podman-run-{os.getuid()}/containers/auth.json", {"auths": {}})
    status = mock.Mock(st_uid=owner)
    with (
        mock.patch.dict(os.environ, env(home, XDG_RUNTIME_DIR=runtime)),
        mock.patch.object(Path, "lstat", lambda _: status),
    ):
        assert (path in credentials.auth_places()) == found, sentence


PLACES = (
    "/run/containers/UID/auth.json",
    "~/.config/containers/auth.json",
    "~/.docker/config.json",
    "~/.dockercfg",
)


@pytest.mark.parametrize(
    ("sentence", "user", "variables", "order"),
    [
        ("root", 0, {}, PLACES),
        ("an ordinary user", 1000, {}, PLACES),
        ("a session", 0, {"XDG_RUNTIME_DIR": "~/x"}, ("~/x/containers/auth.json", *PLACES[1:])),
        ("an empty variable", 0, {"XDG_RUNTIME_DIR": ""}, PLACES),
        ("DOCKER_CONFIG", 0, {"DOCKER_CONFIG": "~/d"}, (*PLACES[:2], "~/d/config.json", *PLACES[3:])),
        (
            "XDG_CONFIG_HOME",
            0,
            {"XDG_CONFIG_HOME": "~/c"},
            (PLACES[0], "~/c/containers/auth.json", *PLACES[2:]),
        ),
    ],
)
def test_order_of_places(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentence: str,
    user: int,
    variables: dict[str, str],
    order: tuple[str, ...],
) -> None:
    """Each place is read where podman and skopeo read it, and in their order."""
    monkeypatch.setattr(os, "getuid", lambda: user)
    names = {"UID": str(user), "~": str(home), "/run/containers": str(credentials.RUN)}
    given = {key: value.replace("~", str(home)) for key, value in variables.items()}

    def real(place: str) -> str:
        for name, value in names.items():
            place = place.replace(name, value)
        return place

    left = [real(place) for place in order]
    for place in left:
        file = Path(place)
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = {"x.example": auth(place, "pw")}
        file.write_text(json.dumps(entry if file.name == ".dockercfg" else {"auths": entry}))
        file.chmod(0o600)
    for place in left:
        assert find("x.example", "", env(home, **given)).username == place, sentence
        Path(place).unlink()
    assert find("x.example", "", env(home, **given)) == ANONYMOUS


def test_folder_of_root(home: Path, write: Callable[..., Path]) -> None:
    """What a user may not look into, or a folder in a file's place, is no file."""
    write("run-containers", "")
    (home / ".docker/config.json").mkdir(parents=True)
    assert find("x.example", "", env(home)) == ANONYMOUS


@pytest.mark.parametrize(
    ("key", "repository", "found"),
    [
        ("https://x.example", "a/b", True),
        ("https://x.example/v1/", "a/b", True),
        ("https://x.example/v2/", "a/b", True),
        ("https://x.example/artifactory/api/docker", "a/b", True),
        ("http://x.example/", "a/b", True),
        ("x.example/", "a/b", True),
        ("x.example/a", "a/b", True),
        ("x.example/c", "a/b", False),
        ("x.example/a/b/c", "a/b", False),
        ("https://x.example:5000", "a/b", False),
        ("https://y.example/x.example", "a/b", False),
    ],
)
def test_keys(home: Path, write: Callable[..., Path], key: str, repository: str, found: bool) -> None:
    """A URL is for its host, HOST/PATH for that path; what is written exactly comes first."""
    write(".docker/config.json", {"auths": {key: auth("one", "x")}})
    assert bool(find("x.example", repository, env(home))) is found
    write(".docker/config.json", {"auths": {"x.example": auth("exact", "x"), key: auth("one", "x")}})
    expected = "one" if key == "x.example/a" else "exact"
    assert find("x.example", repository, env(home)).username == expected


@pytest.mark.parametrize("between", ["\n", "\r\n", " ", "\t", "\n  "])
def test_line_breaks(home: Path, write: Callable[..., Path], between: str) -> None:
    """Base64 with line breaks or blanks (the base64 of a shell) is read."""
    text = auth("robot$with-a-long-name", "s3cret")["auth"]
    broken = between.join([text[:9], text[9:20], text[20:], ""])
    write(".docker/config.json", {"auths": {"x.example": {"auth": broken}}})
    assert find("x.example", "", env(home)).username == "robot$with-a-long-name"


def test_registry_auth_file(home: Path, write: Callable[..., Path]) -> None:
    """REGISTRY_AUTH_FILE replaces all other files, and must exist."""
    write(".docker/config.json", {"auths": {"a.example": auth("docker", "x")}})
    named = write("named.json", {"auths": {"b.example": auth("named", "x")}})
    assert find("b.example", "", env(home, REGISTRY_AUTH_FILE=str(named))).username == "named"
    assert not find("a.example", "", env(home, REGISTRY_AUTH_FILE=str(named)))
    with pytest.raises(RegistryError, match="which does not exist"):
        find("a.example", "", env(home, REGISTRY_AUTH_FILE=str(home / "gone")))


def test_identity_token(home: Path, write: Callable[..., Path]) -> None:
    """An entry may hold an identity token."""
    write(
        ".docker/config.json",
        {"auths": {"x.azurecr.io": {**auth("00000000", ""), "identitytoken": "refresh"}}},
    )
    assert find("x.azurecr.io", "", env(home)).identity_token == "refresh"


def test_credential_helper(home: Path, write: Callable[..., Path]) -> None:
    """A helper receives the host on standard input; credHelpers count before credsStore."""
    script = (
        'test "$*" = get || exit 1; read host || true; printf \'{"Username":"u-%s","Secret":"s"}\' "$host"'
    )
    helper(home, "one", script)
    helper(home, "all", script.replace("u-", "all-"))
    write(
        ".docker/config.json",
        {"auths": {"x.example": {}}, "credHelpers": {"x.example": "one"}, "credsStore": "all"},
    )
    assert find("x.example", "a/b", env(home)).username == "u-x.example"
    assert find("docker.io", "a/b", env(home)).username == "all-https://index.docker.io/v1/"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "No such file"),
        ("echo 'credentials not found in native keychain'; exit 1", ""),
        ("echo 'the keyring is locked' >&2; exit 1", "the keyring is locked"),
        ("echo nonsense", "did not print the JSON of a credential helper"),
    ],
)
def test_failing_helper(home: Path, write: Callable[..., Path], script: str | None, message: str) -> None:
    """A helper that fails is a warning, and the file's own entries are used."""
    if script:
        helper(home, "h", script)
    write(".docker/config.json", {"auths": {"x.example": auth("file", "x")}, "credsStore": "h"})
    warnings: list[str] = []
    assert find("x.example", "", env(home), warnings.append).username == "file"
    assert (message in warnings[0]) if message else not warnings


def test_loose_permissions(home: Path, write: Callable[..., Path]) -> None:
    """A file with passwords that others can read is a warning."""
    warnings: list[str] = []
    path = write(".docker/config.json", {"auths": {"x.example": auth("u", "s3cret")}}, mode=0o644)
    find("x.example", "", env(home), warnings.append)
    assert warnings == [f"{path} contains passwords and other users can read it: chmod 600 {path}"]
    path.chmod(0o600)
    find("x.example", "", env(home), warnings.append)
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"auths": {"x.example": {"auth": "s3cret', "is not JSON"),
        ('["s3cret"]', "is not an auth file"),
        ("[" * 100_000, "is not JSON"),
        ('{"auths": {"x.example": {"auth": "s3cret!"}}}', "is not USER:PASSWORD in base64"),
        ('{"auths": {"x.example": {"auth": "czNjcmV0"}}}', "is not USER:PASSWORD in base64"),
        ('{"credHelpers": ["s3cret"]}', "is not an auth file"),
    ],
    ids=["cut", "list", "deep", "not base64", "no colon", "helpers"],  # the texts would be part of the path
)
def test_damaged_file(home: Path, write: Callable[..., Path], text: str, message: str) -> None:
    """A damaged file is named, and nothing of it is shown."""
    path = write(".docker/config.json", text)
    with pytest.raises(RegistryError, match=message) as caught:
        find("x.example", "", env(home))
    assert (
        str(path) in str(caught.value)
        and "s3cret" not in str(caught.value)
        and "czNj" not in str(caught.value)
    )


@pytest.mark.parametrize(
    ("named", "host", "sent"),
    [
        ("", "any.example", True),
        ("registry.example", "registry.example", True),
        ("Registry.Example:5000", "registry.example:5000", True),
        ("registry.example", "registry.example:5000", False),
        ("registry.example", "registry.example.attacker.example", False),
        ("index.docker.io", "docker.io", True),
    ],
)
def test_registry_host(named: str, host: str, sent: bool) -> None:
    """With REGISTRY_HOST the credentials are for that registry only."""
    variables = {"REGISTRY_USER": "u", "REGISTRY_PASSWORD": "s3cret", "REGISTRY_HOST": named}
    found = environment(variables)
    assert found is not None and are_for(found, host) is sent


@pytest.mark.parametrize(
    "challenge", [Reply(401, {"WWW-Authenticate": 'Basic realm="x"'}), None], ids=["basic", "token server"]
)
def test_password_of_another_registry(challenge: Reply | None) -> None:
    """A registry that is not REGISTRY_HOST never gets the password, and the user is told once."""
    secret = Credentials("u", "s3cret", source="REGISTRY_USER and REGISTRY_PASSWORD", host="registry.example")
    warnings = Warnings()
    with FakeRegistry(token_user=("u", "s3cret")) as fake:
        fake.fault = lambda request: challenge
        with RegistryClient(fake.host, secret, reporter=warnings) as client:
            for _ in range(2):
                with pytest.raises(RegistryError, match="401"):
                    client.manifests.head("a/b", "t")
        sent = [r.headers.get("authorization", "") for r in (*fake.requests, *fake.tokens)]
        assert not any("Basic" in value for value in sent)
        (message,) = warnings.messages
        assert "REGISTRY_HOST" in message and fake.host in message and "s3cret" not in message


@pytest.mark.parametrize(
    ("sentence", "printed", "found"),
    [
        ("the keys in lower case, as Go reads them", '{"username": "u", "secret": "p"}', ("u", "p")),
        ("null is empty", '{"Username": null, "Secret": null}', ("", "")),
    ],
)
def test_answer_of_a_helper(
    home: Path, write: Callable[..., Path], sentence: str, printed: str, found: tuple[str, str]
) -> None:
    helper(home, "h", f"echo '{printed}'")
    write(".docker/config.json", {"credsStore": "h"})
    answer = find("quay.io", "", env(home))
    assert (answer.username, answer.password) == found, sentence


def test_secret_of_a_failing_helper(home: Path, write: Callable[..., Path]) -> None:
    """What a helper prints is not shown where it may be the secret."""
    helper(home, "h", """echo '{"Username":"u","Secret":"hunter2"}'; exit 3""")
    write(".docker/config.json", {"credsStore": "h"})
    warnings: list[str] = []
    find("quay.io", "", env(home), warnings.append)
    assert "docker-credential-h" in warnings[0] and "hunter2" not in warnings[0]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", None])
def test_no_name_of_a_helper(home: Path, write: Callable[..., Path], name: str | None) -> None:
    """A helper that cannot have this name is a warning, and the file's own entries are used."""
    entry = {"auth": base64.b64encode(b"u:p").decode()}
    write(".docker/config.json", {"credHelpers": {"quay.io": name}, "auths": {"quay.io": entry}})
    warnings: list[str] = []
    assert find("quay.io", "", env(home), warnings.append).username == "u"
    assert len(warnings) == (name is not None)


def test_password_of_other_bytes(home: Path, write: Callable[..., Path]) -> None:
    """A password that is not UTF-8 is sent as it is, as docker and skopeo do."""
    pair = "u:\xfc".encode("latin-1")
    write(".docker/config.json", {"auths": {"quay.io": {"auth": base64.b64encode(pair).decode()}}})
    variables = {"REGISTRY_USER": "u", "REGISTRY_PASSWORD": os.fsdecode(b"\xfc")}
    for found in (find("quay.io", "", env(home)), environment(variables)):
        assert found is not None and base64.b64decode(found.basic.split()[1]) == pair
