"""Names of Debian packages by libraries. Those of bookworm are from its list of files (Contents-amd64)."""

from __future__ import annotations

import pytest

from builder.build.bases.debian_libraries import debian_package

BOOKWORM = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libX11.so.6": "libx11-6",
    "libXext.so.6": "libxext6",
    "libICE.so.6": "libice6",
    "libxcb.so.1": "libxcb1",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libgomp.so.1": "libgomp1",
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
    "libz.so.1": "zlib1g",
    "libcrypt.so.1": "libcrypt1",
    "libexpat.so.1": "libexpat1",
    "libsndfile.so.1": "libsndfile1",
    "libgtk-3.so.0": "libgtk-3-0",
    "libgdk-3.so.0": "libgtk-3-0",
    "libpango-1.0.so.0": "libpango-1.0-0",
    "libgstapp-1.0.so.0": "libgstreamer-plugins-base1.0-0",
    "libgstgl-1.0.so.0": "libgstreamer-gl1.0-0",
    "libgssapi_krb5.so.2": "libgssapi-krb5-2",
    "libpng16.so.16": "libpng16-16",
    "libSDL2-2.0.so.0": "libsdl2-2.0-0",
    "libusb-1.0.so.0": "libusb-1.0-0",
    "libtinfo.so.6": "libtinfo6",
    "libmpi.so.40": "libopenmpi3",
    "libgeos.so.3.11.1": "libgeos3.11.1",
}


#: The releases with other names, and the names there: ``apt-cache`` and Contents-amd64 of each, 2026-11-29.
OTHERS = {
    ("libmpi.so.40", "debian", "13"): "libopenmpi40",
    ("libmpi.so.40", "debian", "forky"): "libopenmpi40",
    ("libmpi.so.40", "ubuntu", "24.04"): "libopenmpi3",
    ("libmpi.so.40", "ubuntu", "25.04"): "libopenmpi40",
    ("libasound.so.2", "debian", "13"): "libasound2",
    ("libasound.so.2", "debian", "14"): "libasound2t64",
    ("libasound.so.2", "ubuntu", "22.04"): "libasound2",
    ("libasound.so.2", "ubuntu", "24.04"): "libasound2t64",
    ("libcurl-gnutls.so.4", "debian", "forky"): "libcurl4-gnutls",
    ("libcurl-gnutls.so.4", "ubuntu", "26.04"): "libcurl3-gnutls",
    ("libjpeg.so.62", "debian", "forky"): "libjpeg62-turbo",
    ("libjpeg.so.62", "ubuntu", "22.04"): "libjpeg62",
    ("libOSMesa.so.8", "debian", "13"): "libosmesa6",
    ("libOSMesa.so.8", "debian", "forky"): "",
    ("libxml2.so.2", "ubuntu", "25.10"): "",
    ("libxml2.so.2", "linuxmint", "99"): "libxml2",
}


@pytest.mark.parametrize("library", BOOKWORM)
def test_bookworm(library: str) -> None:
    assert debian_package(library, "debian", "12") == BOOKWORM[library]
    assert debian_package(library) == BOOKWORM[library]


@pytest.mark.parametrize(("library", "system", "version"), OTHERS)
def test_other_releases(library: str, system: str, version: str) -> None:
    """A row counts from its release on, and in its system only."""
    assert debian_package(library, system, version) == OTHERS[library, system, version]


@pytest.mark.parametrize(
    "library",
    [
        *("libtorch_cuda.so", "libcublas.so.12", "libcudart.so.13", "libhipblas.so.2", "libQt5Core.so.5"),
        *("libz-1a2b3c4d.so.1", "libmpi.so.12", "x.cpython-311.so", "#", "libx.so.1\n"),
    ],
)
def test_not_in_debian(library: str) -> None:
    assert debian_package(library) == ""
