"""The order in which conda packages are linked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builder.core.model import LockedPackage
from builder.formats.layers.conda_order import link_order


def locked(name: str, *needs: str, subdir: str = "linux-64") -> LockedPackage:
    url = f"https://conda.anaconda.org/conda-forge/{subdir}/{name}-1.0-0.conda"
    return LockedPackage(
        name, "1.0", "conda", "linux-64", url, "0" * 64, dependencies=dict.fromkeys(needs, "")
    )


@given(st.permutations(range(6)), st.data())
def test_dependencies_come_first(order: list[int], data: st.DataObject) -> None:
    """Dependencies come first, and the order of the input does not matter."""
    needs = {i: data.draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(6)}
    packages = {i: locked(f"p{i}", *(f"p{n}" for n in needs[i]), "__glibc") for i in range(6)}
    out = link_order([packages[i] for i in order])
    assert out == link_order(list(packages.values()))
    place = {p.name: i for i, p in enumerate(out)}
    assert len(place) == 6
    assert all(place[f"p{n}"] < place[f"p{i}"] for i in needs for n in needs[i])


def test_cycles() -> None:
    """Cycles are cut so that noarch packages come last."""
    pip, python = locked("pip", "python", "setuptools", subdir="noarch"), locked("python", "pip", "libz")
    out = link_order([pip, python, locked("libz"), locked("setuptools", "python", subdir="noarch")])
    names = [p.name for p in out]
    assert names.index("libz") < names.index("python") < names.index("setuptools") < names.index("pip")
    a, b = locked("a", "b"), locked("b", "a")
    assert link_order([a, b]) == link_order([b, a])
