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
    "libgssapi_krb5.so.2": "libgssapi-krb5-2",
    "libpng16.so.16": "libpng16-16",
    "libSDL2-2.0.so.0": "libsdl2-2.0-0",
    "libusb-1.0.so.0": "libusb-1.0-0",
    "libtinfo.so.6": "libtinfo6",
    "libmpi.so.40": "libopenmpi3",
    "libgeos.so.3.11.1": "libgeos3.11.1",
}


@pytest.mark.parametrize("library", BOOKWORM)
def test_bookworm(library: str) -> None:
    assert debian_package(library) == BOOKWORM[library]


@pytest.mark.parametrize(
    "library",
    [
        *("libtorch_cuda.so", "libcublas.so.12", "libcudart.so.13", "libhipblas.so.2", "libQt5Core.so.5"),
        *("libz-1a2b3c4d.so.1", "libmpi.so.12", "x.cpython-311.so", "#", "libx.so.1\n"),
    ],
)
def test_not_in_debian(library: str) -> None:
    assert debian_package(library) == ""
