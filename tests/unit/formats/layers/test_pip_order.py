"""The order in which pip installs wheels."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pytest

from builder.core.model import LockedPackage
from builder.formats.layers.pip_order import pip_order
from tests.support.wheels import CONTEXT


def order(requires: dict[str, Sequence[str]]) -> str:
    packages = []
    for name in requires:
        url = f"https://host.example/{name}-1-py3-none-any.whl"
        packages.append(
            LockedPackage(name, "1", "pip", "linux-64", url, hashlib.sha256(name.encode()).hexdigest())
        )
    random.shuffle(packages)
    found = pip_order(packages, {p.key: requires[p.name] for p in packages}, CONTEXT)
    return " ".join(package.name for package in found)


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        ({"a": [], "b": [], "c": []}, "c b a"),
        ({"a": [], "b": ["a"], "z": []}, "z a b"),
        (
            {
                "jupyter": ["notebook", "jupyter-console"],
                "notebook": ["jupyter-core >=5"],
                "jupyter-console": ["jupyter_core"],
                "jupyter-core": ["traitlets", "six"],
                "traitlets": [],
                "six": [],
            },
            "traitlets six jupyter-core notebook jupyter-console jupyter",
        ),
        ({"a": ["x; sys_platform == 'win32'"], "b": ["x; sys_platform == 'linux'"], "x": []}, "x a b"),
        ({"a": ["x; python_version < '3.9'"], "b": ["x; python_version >= '3.11'"], "x": []}, "x a b"),
        ({"a": ["x; extra == 'more'"], "b": ["x"], "x": []}, "x a b"),
        ({"a": ["x; extra == 'more'"], "b": ["a[more]"], "x": []}, "x a b"),
        ({"a": [], "b": ["from-conda >=1"], "z": ["b"]}, "a b z"),
        ({"a": ["not a requirement"], "b": []}, "b a"),
    ],
)
def test_order(requires: dict[str, Sequence[str]], expected: str) -> None:
    """As pip 23 installs them, which was run on the same graphs."""
    assert order(requires) == expected


def test_cycle() -> None:
    """Packages that need each other come last, in the reverse order of names."""
    names = [f"p{number:04}" for number in range(3000)]
    requires = {name: [needed] for name, needed in zip(names, [*names[1:], names[0]], strict=True)}
    assert order({**requires, "z": []}) == " ".join(["z", *reversed(names)])
