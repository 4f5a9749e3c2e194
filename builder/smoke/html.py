"""The history of smoke tests as one HTML page: no network, no script, light and dark.

The template escapes all text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from builder.smoke.figures import BASIS_NAMES
from builder.smoke.reference import References
from builder.smoke.reports import StoredReport
from builder.smoke.view import format_measurement, view

Targets = Mapping[str, tuple[Sequence[StoredReport], Sequence[str]]]
"""By target: its reports, and a message for each one that cannot be read, as read_folder returns them."""


def render(targets: Targets, figures: References, *, made: str) -> str:
    """The page.

    Args:
        targets: the reports of each target.
        figures: the reference figures, for reports without a grade and for the roofline.
        made: the time that the page shows.
    """
    tested = {name: found for name, found in targets.items() if found[0]}
    untested = {name: problems for name, (stored, problems) in targets.items() if not stored}
    return _template().render(
        targets=[view(name, stored, problems, figures) for name, (stored, problems) in tested.items()],
        untested=untested,
        made=made,
    )


@functools.cache
def _template() -> Template:
    """The compiled template. To compile it takes longer than to render a page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda value: f"{value:.1f}"
    environment.globals["format_measurement"] = format_measurement
    environment.globals["basis_names"] = BASIS_NAMES
    text = resources.files("builder.smoke").joinpath("report.html.j2").read_text("utf-8")
    return environment.from_string(text)
