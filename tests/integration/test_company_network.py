"""builder where an authority of the company's own is in the system's store, and no variable names it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.channel import serve, simple_index
from tests.support.company import CompanyNetwork, company_network
from tests.support.parts import RegistryFactory
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project
from tests.support.proxy import proxy_to
from tests.support.signkeys import make_pair
from tests.support.wheels import make_wheel


@pytest.fixture
def network(tmp_path: Path):
    with company_network(tmp_path) as made:
        yield made


@pytest.fixture
def project(network: CompanyNetwork, tmp_path: Path) -> TinyProject:
    """Its conda packages and its wheel come from servers of the company."""
    tiny_channel(network.root / "channel")
    simple_index(network.root / "simple", make_wheel(tmp_path / "w", "alpha", "1.0"))
    made = tiny_project(tmp_path, f"{network.web}/channel")
    edit(made.recipe, smoke={"none": "it has no Python"})
    text = made.environment.read_text()
    index = f"      - --index-url {network.web}/simple\n      - alpha\n"
    made.environment.write_text(text.replace("      - pure\n", index))
    return made


def test_release(
    network: CompanyNetwork, project: TinyProject, make_registry: RegistryFactory, tmp_path: Path
) -> None:
    """Lock, build, publish, verify and pull work; rattler, uv and the registry's client trust the same."""
    registry = make_registry(tls=True)
    assert registry.ca is not None
    network.trust(registry.ca)
    private, public = make_pair(tmp_path / "keys", "me")
    env = {k: v for k, v in project.variables().items() if k != "PIP_NO_INDEX"}
    env["BUILDER_SIGN_PASSWORD_FILE"] = str(tmp_path / "password")
    (tmp_path / "password").write_text("")

    def builder(*words: str | Path, check: bool = True) -> str:
        command = [sys.executable, "-m", "builder", *words]
        return network.run(command, env, project.root, check=check).stdout

    name = f"{registry.host}/team/image"
    builder("lock", "tiny")
    builder("build", "tiny")
    builder("publish", "tiny", "--to", name, "--tag", "1", "--sign", private)
    verified = builder("verify", f"{name}:1", "--key", public, check=False)
    assert "ok      signature" in verified and "ok      sbom" in verified
    assert verified.count("FAILED") == verified.count("FAILED  smoke: the verdict is none") == 1
    pulled = json.loads(builder("pull", "tiny", "--from", name, "--tag", "1", "--output", "copy", "--json"))
    assert pulled["digest"] in (project.root / "copy/index.json").read_text()
    assert {"/simple/alpha-1.0-py3-none-any.whl", "/channel/noarch/repodata.json"} <= set(
        network.web.requests
    )


def test_untrusted(network: CompanyNetwork, project: TinyProject, tmp_path: Path) -> None:
    """Where the store does not have the authority, each part says the same thing to do."""
    env = {k: v for k, v in project.variables().items() if k != "PIP_NO_INDEX"}
    network.store.write_text(network.store.read_text().rpartition("-----BEGIN")[0])

    def errors(*words: str) -> str:
        done = network.run([sys.executable, "-m", "builder", *words], env, project.root, check=False)
        assert done.returncode == 6, done.stderr
        return done.stderr

    hint = "if your network has an authority of its own, name the file with its certificate in SSL_CERT_FILE"
    text = errors("lock", "tiny")
    assert "invalid peer certificate" in text and hint in text
    with serve(network.root) as plain:
        text = project.environment.read_text().replace(f"{network.web}/channel", f"{plain}/channel")
        project.environment.write_text(text)
        text = errors("lock", "tiny")
        assert "its certificate is not trusted" in text and hint in text
        env["PIP_INDEX_URL"] = f"{network.web}/simple"
        text = re.sub(r" *- --index-url.*\n", "", project.environment.read_text())
        project.environment.write_text(text)
        text = errors("lock", "tiny")
        assert "UnknownIssuer" in text and hint in text and "system-certs" not in text


def test_programs_and_no_proxy(network: CompanyNetwork, project: TinyProject) -> None:
    """rattler and uv ask this machine directly, as builder does; an error from a proxy names it."""
    with proxy_to("127.0.0.1:9", "502 Bad Gateway") as proxy:
        env = {k: v for k, v in project.variables().items() if not k.lower().endswith("_proxy")}
        env = {**env, "https_proxy": f"http://me:hush@{proxy.host}", "NO_PROXY": "*.site.invalid"}
        del env["PIP_NO_INDEX"]

        def lock(text: str, code: int) -> str:
            project.environment.write_text(text)
            command = [sys.executable, "-m", "builder", "lock", "tiny"]
            done = network.run(command, env, project.root, check=False)
            assert done.returncode == code and "hush" not in done.stderr, done.stderr
            return done.stderr

        text, hint = project.environment.read_text(), f"the proxy {proxy.host} of https_proxy"
        lock(text, 0)
        for part in ("channel", "simple"):
            here = f"{network.web}/{part}"
            for host, is_asked in (("packages.site.invalid", False), ("packages.site", True)):
                error = lock(text.replace(here, f"https://{host}/{part}"), 6)
                assert (hint in error) == (f"{host}:443" in proxy.asked) == is_asked, error


def test_channel_through_socks(
    network: CompanyNetwork, project: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rattler cannot use a SOCKS proxy: the hint says so, and that the lock can be used there."""
    env = {**project.variables(), "ALL_PROXY": "socks5h://127.0.0.1:9"}
    text = project.environment.read_text().replace(f"{network.web}", "https://conda.site")
    project.environment.write_text(text)
    command = [sys.executable, "-m", "builder", "lock", "tiny"]
    done = network.run(command, env, project.root, check=False)
    assert done.returncode == 6 and "unsupported scheme socks5h" in done.stderr
    assert "a build from the lock works through SOCKS" in done.stderr
