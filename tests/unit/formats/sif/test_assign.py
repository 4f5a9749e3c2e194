"""Which layers become which partition."""

from __future__ import annotations

import json
from collections.abc import Sequence

from builder.core.model import OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor, Image, Layer
from builder.formats.sif.assign import Assignment, assign_layers
from builder.formats.sif.partitions import MAX_OVERLAYS


def image(titles: Sequence[str], sizes: Sequence[int] = ()) -> Image:
    """An image whose history has these texts, from the bottom up."""
    sizes = sizes or [1] * len(titles)
    layers = [
        Layer(Descriptor(OCI_LAYER_GZIP, f"sha256:{number:064x}", size), f"sha256:{number:064x}")
        for number, size in enumerate(sizes)
    ]
    config = json.dumps({"history": [{"created_by": title} for title in titles]}).encode()
    manifest = Descriptor.of(OCI_MANIFEST, b"{}")
    return Image(tuple(layers), config, Descriptor.of(OCI_CONFIG, config), b"{}", manifest)


def numbers(assigned: Assignment) -> dict[str, list[int]]:
    """The numbers of the layers of each partition."""
    found = {group.name: [int(x.diff_id[7:], 16) for x in group.layers] for group in assigned.overlays}
    return {"base": [int(x.diff_id[7:], 16) for x in assigned.base], **found}


BUILT = ["FROM x", "RUN y", "builder: environment prefix", "builder: pip numpy 1.0", "builder: entry point"]


#: The kinds of partitions, from the bottom up.
ORDER = ["bottom", "packages", "bytecode", "top"]


def test_base_bottom_packages_top() -> None:
    """Base layers, layers before the packages, packages, and the rest have partitions of their own."""
    assigned = assign_layers(image(BUILT), base_is_sif=False, most=MAX_OVERLAYS)
    assert numbers(assigned) == {"base": [0, 1], "bottom": [2], "packages-own-2": [3], "top": [4]}
    assert [group.packages for group in assigned.overlays] == [False, True, False]


def test_new_version_stays_in_its_partition() -> None:
    """The partition of a package depends on its name and size, not on its version or on other packages."""
    for version, others in (
        ("1.0", []),
        ("2.5", []),
        ("1.0", ["builder: pip a 1", "builder: conda group 3: b"]),
    ):
        titles = [*BUILT[:3], f"builder: pip numpy {version}", *others, BUILT[-1]]
        found = numbers(assign_layers(image(titles), base_is_sif=False, most=MAX_OVERLAYS))
        assert 3 in found["packages-own-2"]


def test_compiled_modules_are_above_packages() -> None:
    """Compiled modules have partitions of their own, above all packages; these stay in theirs. The version
    plays no part.
    """
    below = [*BUILT[:4], "builder: pip torch 2.0"]
    without = numbers(assign_layers(image([*below, BUILT[-1]]), base_is_sif=False, most=MAX_OVERLAYS))
    for version in ("1.0", "2.0"):
        pycs = [f"builder: bytecode of pip {name} {version}" for name in ("numpy", "torch", "six")]
        titles = [*below, *pycs, BUILT[-1]]
        assigned = assign_layers(image(titles), base_is_sif=False, most=MAX_OVERLAYS)
        found = numbers(assigned)
        compiled = [number for name, layers in found.items() if "bytecode" in name for number in layers]
        assert found["top"] == [8] and sorted(compiled) == [5, 6, 7]
        assert all(found[name] == layers for name, layers in without.items() if name != "top")
        names = [group.name for group in assigned.overlays]
        assert names == sorted(names, key=lambda name: ORDER.index(name.partition("-")[0]))
        assert all(group.packages for group in assigned.overlays[1:-1])
