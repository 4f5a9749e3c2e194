"""What the lock has of rattler's records; solves are in tests/integration."""

from __future__ import annotations

import pytest

from builder.lock.conda import conda_dependencies


@pytest.mark.parametrize(
    ("depends", "found"),
    [
        (
            ["python >=3.11,<3.12", "python_abi 3.11.* *_cp311"],
            {"python": ">=3.11,<3.12", "python_abi": "3.11.* *_cp311"},
        ),
        (["u>=2", "v==1", "w=1.2"], {"u": ">=2", "v": "==1", "w": "=1.2"}),
        (['aaa[when="python>=3.10"]', 'b >=1[when="__unix"]'], {"aaa": "", "b": ">=1"}),
        (["c[extras=[x,y]]", "d"], {"c": "", "d": ""}),
        (["a >=1", "a <2", "e 1.0", "e * x_0"], {"a": ">=1,<2", "e": "1.0"}),
        ([" f  >=1.0,"], {"f": ">=1.0,"}),
    ],
)
def test_dependencies(depends: list[str], found: dict[str, str]) -> None:
    """Names as rattler takes them from a text, and versions as they are written."""
    assert conda_dependencies(depends) == found
