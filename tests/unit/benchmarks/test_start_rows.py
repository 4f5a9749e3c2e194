"""Rows of the start of images: versions by name, medians, ratios."""

from __future__ import annotations

from benchmarks.start_rows import StartImage, StartRow, images_of, render


def test_images_of() -> None:
    """A name with ", bumped" is the second version of the image of that name."""
    references = {"ours": "h/a:1", "ours, bumped": "h/a:2", "ours, plain": "h/b:1"}
    assert images_of(references) == (
        StartImage("ours", "h/a:1", "h/a:2"),
        StartImage("ours, plain", "h/b:1"),
    )


def test_render() -> None:
    """Each row is compared with its rival of the same case and tool, by medians."""
    rows = [
        StartRow("cold", "docker", "ours", "theirs", [1.0, 9.0, 2.0], [1.0, 1.0, 1.0], [0.5, 0.6, 0.7]),
        StartRow("cold", "docker", "theirs", "theirs", [4.0], [2.0]),
        StartRow("cold", "podman", "ours", "theirs", [3.0], [2.0]),
    ]
    lines = render(rows).splitlines()
    assert lines[2] == "| cold | docker | ours | 2.00 s | 0.60 s | 1.00 s | 0.50 | 0.50 |"
    assert lines[3] == "| cold | docker | theirs | 4.00 s |  | 2.00 s | 1.00 | 1.00 |"
    assert lines[4] == "| cold | podman | ours | 3.00 s |  | 2.00 s |  |  |"
