"""Random layers that make, replace, hide and link few names again and again."""

from __future__ import annotations

import random
import tarfile

from builder.core.model import Layer
from builder.core.store.blobs import Store
from tests.support.image_kit import layer, member


def random_layers(r: random.Random, store: Store) -> list[Layer]:
    """A few layers, from the bottom up; the same seed makes the same layers."""
    names = ["a", "b", "c", "a/x", "a/y", "b/x", "b/z", "a/x/1", "a/x/2", "b/x/1", "c/deep/er"]
    layers: list[Layer] = []
    visible: set[str] = set()
    for number in range(r.randint(2, 5)):
        here: dict[str, str] = {}
        members = []
        for name in r.sample(names, r.randint(1, 7)):
            parents = ["/".join(name.split("/")[: i + 1]) for i in range(name.count("/"))]
            if (
                name in here
                or any(here.get(p, "dir") != "dir" for p in parents)
                or any(h.startswith(f"{name}/") for h in here)
            ):
                continue
            for parent in parents:
                if parent not in here:
                    here[parent] = "dir"
                    members.append(member(f"{parent}/", mode=0o700 + number))
            folder, _, leaf = name.rpartition("/")
            prefix = f"{folder}/" if folder else ""
            kind = r.choice(["file", "file", "file", "dir", "link", "hard", "whiteout", "opaque"])
            files = [p for p, k in here.items() if k == "file"]
            if kind == "whiteout":
                members.append(member(f"{prefix}.wh.{leaf}", b""))
            elif kind == "opaque":
                here[name] = "dir"
                members += [member(f"{name}/", mode=0o700 + number), member(f"{name}/.wh..wh..opq", b"")]
            elif kind == "dir":
                here[name] = "dir"
                members.append(member(f"{name}/", mode=0o700 + number))
            elif kind == "link":
                here[name] = "link"
                members.append(member(name, target=f"nowhere-{number}"))
            elif kind == "hard" and files:
                here[name] = "hard"
                members.append(member(name, kind=tarfile.LNKTYPE, target=r.choice(files)))
            else:
                here[name] = "file"
                members.append(member(name, f"{name} of {number}".encode()))
        visible |= here.keys()
        layers.append(layer(store, *members))
    return layers
