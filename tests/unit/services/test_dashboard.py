"""The dashboard for Grafana. tests/integration/test_services.py compares its queries with a real Ray."""

from __future__ import annotations

import json
from importlib.resources import files


def test_dashboard() -> None:
    """It has what Grafana imports: panels with numbers of their own, each with queries and a data source."""
    board = json.loads(files("builder.services").joinpath("files/dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert "ray_" in target["expr"] and target["legendFormat"], panel["title"]
