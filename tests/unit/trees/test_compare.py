"""Trees compared."""

from __future__ import annotations

from builder.trees.compare import Difference, Node, compare_trees


def test_compare_trees() -> None:
    """Differences are found by field; files for the SIF runtime and mount points do not count."""
    file = Node("file", 0o644, 0, 0, 3, "aa")
    folder = Node("directory", 0o755, 0, 0)
    link = Node("symlink", 0o777, 0, 0, target="x")
    a = {"": folder, "same": file, "f": file, "d": folder, "l": link, "gone": file, "etc": folder}
    b = {
        "": Node("directory", 0o700, 9, 9),
        "same": file,
        "f": Node("file", 0o600, 0, 0, 3, "bb"),
        "d": Node("directory", 0o755, 1, 0),
        "l": Node("symlink", 0o777, 0, 0, target="y"),
        "etc": folder,
        # what a SIF has for the runtime
        ".singularity.d/runscript": file,
        "singularity": Node("symlink", 0o777, 0, 0, target=".singularity.d/runscript"),
        "home": folder,
        "etc/hosts": Node("file", 0o644, 0, 0),
        # and what only looks like it
        "environment": file,
        "etc/resolv.conf": file,
    }
    found = compare_trees(a, b)
    assert [(d.path, d.kind, d.what) for d in found] == [
        ("d", "differs", ("uid",)),
        ("environment", "only-b", ()),
        ("etc/resolv.conf", "only-b", ()),
        ("f", "differs", ("sha256", "mode")),
        ("gone", "only-a", ()),
        ("l", "differs", ("target",)),
    ]
    assert found[3].to_json() == {
        "path": "/f",
        "kind": "differs",
        "what": ["sha256", "mode"],
        "values": {"sha256": ["aa", "bb"], "mode": [0o644, 0o600]},
    }
    assert [d.path for d in compare_trees(a, b, owners=False)] == [
        "environment",
        "etc/resolv.conf",
        "f",
        "gone",
        "l",
    ]
    assert compare_trees(a, a) == []
    assert isinstance(found[0], Difference)
