"""Systems that are switched off."""

from __future__ import annotations

import pytest

from builder.config.queues import Slurm
from builder.config.site import Site
from builder.errors import UsageError
from builder.site.build_job import build_job
from builder.site.status import require_current, retired_note
from tests.support.image_kit import recipe

RETIRED = Site(
    title="Old", slurm=Slurm(), status="retired", retired="2025-09-12", successors=("new", "newer")
)


def test_note() -> None:
    assert retired_note(RETIRED, "Old") == "Old was switched off on 2025-09-12; its successors: new, newer"
    assert retired_note(Site(slurm=Slurm(), status="retired"), "Old") == "Old was switched off"
    assert retired_note(Site(slurm=Slurm()), "Old") == ""


def test_no_jobs() -> None:
    """Neither a job nor a build is submitted there; the hint names what to type."""
    for start in (require_current, lambda recipe: build_job(recipe, ["true"], account="a")):
        with pytest.raises(UsageError) as raised:
            start(recipe(site=RETIRED))
        assert "no job can be submitted" in raised.value.message
        assert raised.value.hint.startswith("write site: new in tiny.yaml")
