"""The plot of cost against size."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from benchmarks.plot import plot
from tests.unit.benchmarks.results import point, results

SVG = "{http://www.w3.org/2000/svg}"


def test_svg() -> None:
    """It is XML with a line for each way in each panel, and every point is inside the picture."""
    root = ET.fromstring(plot(results()["size"], "2026-01-02"))
    assert root.tag == f"{SVG}svg"
    circles = root.findall(f"{SVG}circle")
    assert len(circles) == 2 * 3 + 2 * 2
    assert all(0 <= float(c.attrib["cx"]) <= 860 and 0 <= float(c.attrib["cy"]) <= 400 for c in circles)
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {"builder", "builder, bytecode: none", "the machine's limit", "10 GB"} <= set(texts)


def test_more_is_higher() -> None:
    root = ET.fromstring(plot([point(10, 10**8, 1.0), point(30, 10**9, 5.0)], "2026-01-02"))
    first, second = root.findall(f"{SVG}circle")[:2]
    assert float(first.attrib["cx"]) < float(second.attrib["cx"])
    assert float(first.attrib["cy"]) > float(second.attrib["cy"])
