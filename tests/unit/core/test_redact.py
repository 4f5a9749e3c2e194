"""The one function that removes credentials from text."""

from __future__ import annotations

import time

import pytest

from builder.core.redact import redact

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:p%40ss@h.org/x", "https://h.org/x"),
        ("- 'https://token@h.org/simple'", "- 'https://h.org/simple'"),
        ("tcp://me:secret@host:2376", "tcp://host:2376"),
        (
            "https://u:p@host:8443/t/abc-123/chan/x.conda?sig=1#f",
            "https://host:8443/t/***/chan/x.conda?sig=***#f",
        ),
        ("https://host/api/t/tok/chan/noarch", "https://host/api/t/***/chan/noarch"),
        (
            "https://h.org/x?X-Amz-Credential=a%2Fb&X-Amz-Signature=c&v=1",
            "https://h.org/x?X-Amz-Credential=***&X-Amz-Signature=***&v=***",
        ),
        ("https://h.org/x?access_token=abc", "https://h.org/x?access_token=***"),
        ("https://u:secret@[broken/x", "https://[broken/x"),
        ("https://robot$ml+ci:S3CR3T@harbor.org/x", "https://harbor.org/x"),
        ("https://${USER}:S3CR3T@h.org", "https://h.org"),
        ("https://S3CR3T:$PASSWORD+x@h.org", "https://h.org"),
        ("https://u:pa$$x@h.org/y", "https://h.org/y"),
        ("https://u:p@ss@h.org/y", "https://h.org/y"),
        ("https://u:pa/ss@h.org/y", "https://h.org/y"),
        ("https://u:p?a#s@h.org/y", "https://h.org/y"),
        ("https://u://S3CR3T/@h.org/y", "https://h.org/y"),
        ("https://u://S3CR3T@h.org/y?k=S3CR3T and b", "https://h.org/y?k=*** and b"),
        ("https://u:///a,https://u:p@b.org/t/S3CR3T/c", "https://b.org/t/***/c"),
        ("docker://u://pw/@h.org/name@" + DIGEST, "docker://h.org/name@" + DIGEST),
        ("https://u:it's@h.org/y", "https://h.org/y"),
        ("https://u:a/b@c/d@h.org", "https://h.org"),
        ("docker://u:pw@h.org/name@" + DIGEST, "docker://h.org/name@" + DIGEST),
        ("https://a.org/x,https://u:p/w@b.org/", "https://a.org/x,https://b.org/"),
        ("https://h.org/x?private_token=S3CR3T", "https://h.org/x?private_token=***"),
        ("https://h.org/x?k=$TOKEN&l=${A}b&m", "https://h.org/x?k=$TOKEN&l=***&m"),
        ("https://h.org/x?S3CR3T#a", "https://h.org/x?***#a"),
        ("'https://h.org/x?k=S3CR3T', 'b'", "'https://h.org/x?k=***', 'b'"),
        ('["https://a.org/?k=S3CR3T","https://u:p@b.org"]', '["https://a.org/?k=***","https://b.org"]'),
        ("two: https://a:b@c/ and https://d:e@f/", "two: https://c/ and https://f/"),
    ],
)
def test_credentials_go(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://h.org/chan#a@b and mail@h.org",
        "https://h.org/pkg@1.0/x",
        "https://h.org/x?v=$VERSION&download=${D}",
        "https://h.org:8443/pkg@1.0/x",
        "http://[::1]:5000/pkg@1.0/x",
        "docker://name:tag@" + DIGEST,
        "docker://h.org:5000/name:tag@" + DIGEST,
        "file:///home/a:b@c/x.whl#sha256=ab",
        "pkg:conda/numpy@1.0?build=0&channel=conda-forge",
        "https://$USER_NAME:$PASSWORD@h.org/x",
        "https://me:${PASSWORD}@h.org/x",
        "https://$TOKEN@h.org/x",
        "https://h.org/t/$TOKEN/chan/noarch",
        "https://h.org/t/${TOKEN}/chan/noarch",
        "https://h.org/packages/py3/t/torch/Torch-2.0-py3-none-any.whl",
        "https://h.org/debian/pool/main/t/tar/tar_1.34.deb",
        "unix:///var/run/docker.sock",
        "oci://docker://h.org/name@" + DIGEST,
        "https://proxy.org/https://h.org/@scope/x",
    ],
)
def test_the_rest_stays(text: str) -> None:
    """What holds no credential stays as it is; the name of a variable is not a credential."""
    assert redact(text) == text


def test_dollar_in_a_password() -> None:
    """A password that merely contains a dollar sign is no variable."""
    assert redact("https://me:pa$word@h.org/x") == "https://h.org/x"


def test_parts_of_variables() -> None:
    """A user name beside a variable stays; a part of a variable does not."""
    assert redact("https://me:$PASSWORD@h.org") == "https://me:$PASSWORD@h.org"
    assert redact("https://me:a${PASSWORD}@h.org") == "https://h.org"


def test_speed() -> None:
    """A long lock takes little time, and so does a text made to be slow."""
    started = time.process_time()
    redact("  url: https://conda.example/conda-forge/linux-64/zlib-1.3-0.conda\n" * 10_000)
    redact("https://" + "u:" * 100_000 + "@" * 100_000)
    redact("https://h/?" + "=&" * 100_000)
    redact("://" * 100_000)
    redact("a://" * 100_000)
    redact("a://b://c@" * 100_000)
    redact("https://h" + "/t/" * 100_000)
    assert time.process_time() - started < 1
