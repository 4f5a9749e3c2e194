"""References by Docker's rules."""

from __future__ import annotations

import pytest

from builder.core.errors import RegistryError
from builder.formats.oci.reference import Reference

DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag", "digest"),
    [
        ("debian", "docker.io", "library/debian", None, None),
        ("debian:12", "docker.io", "library/debian", "12", None),
        ("docker.io/debian", "docker.io", "library/debian", None, None),
        ("index.docker.io/a/b", "docker.io", "a/b", None, None),
        ("rocm/pytorch:latest", "docker.io", "rocm/pytorch", "latest", None),
        ("docker://nvcr.io/nvidia/cuda:12.4.1-base", "nvcr.io", "nvidia/cuda", "12.4.1-base", None),
        ("localhost/a", "localhost", "a", None, None),
        ("localhost:5000/a:1", "localhost:5000", "a", "1", None),
        ("registry:5000/x/y/z", "registry:5000", "x/y/z", None, None),
        ("[::1]:5000/a:t", "[::1]:5000", "a", "t", None),
        ("REGISTRY.example/a", "registry.example", "a", None, None),
        (f"ghcr.io/o/n:v1@{DIGEST}", "ghcr.io", "o/n", "v1", DIGEST),
        (f"debian@{DIGEST}", "docker.io", "library/debian", None, DIGEST),
        (
            "registry.nersc.gov/m558/superfacility/synapse-ml_x--y__z",
            "registry.nersc.gov",
            "m558/superfacility/synapse-ml_x--y__z",
            None,
            None,
        ),
    ],
)
def test_parse(text: str, host: str, repository: str, tag: str | None, digest: str | None) -> None:
    """References are read by Docker's rules, and written back."""
    found = Reference.parse(text)
    assert (found.host, found.repository, found.tag, found.digest) == (host, repository, tag, digest)
    assert Reference.parse(str(found)) == found, "what it writes it reads"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no repository"),
        ("host:5000/", "names no repository"),
        ("Debian", "write it in lower case: library/debian"),
        ("ghcr.io/Org/name", "write it in lower case: org/name"),
        ("a/b:-x", "'-x' is not a tag"),
        ("a/b:", "'' is not a tag"),
        ("a/b:" + "t" * 129, "is not a tag"),
        ("a//b", "'' cannot be part"),
        ("a/../b", "'..' cannot be part"),
        ("a/b_", "'b_' cannot be part"),
        ("a/b@sha256:12", "64 hex digits"),
        ("https://ghcr.io/a/b", "leave out the scheme"),
        ("ho_st.example/a", "not a host name"),
        ("a/" + "b" * 300, "longer than 255"),
    ],
)
def test_errors(text: str, message: str) -> None:
    """The message about a wrong reference names the rule."""
    with pytest.raises(RegistryError) as caught:
        Reference.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["user:s3cret@ghcr.io/a", "https://user:s3cret@ghcr.io/a", "user:s3cret@" + DIGEST[:20]]
)
def test_no_password_in_message(text: str) -> None:
    """A password in a reference is not shown."""
    with pytest.raises(RegistryError) as caught:
        Reference.parse(text)
    assert "s3cret" not in str(caught.value)
