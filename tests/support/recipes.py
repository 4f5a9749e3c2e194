"""The recipe of a target ``site``, for tests of what is attached to an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.core.model import LockedBase
from builder.lock.config.recipe import Recipe

BASE = LockedBase("docker://debian@sha256:" + "e" * 64, "sha256:" + "e" * 64)


def site_recipe(**more: Any) -> Recipe:
    values = {
        "name": "site",
        "base": BASE.reference,
        "environment": "e.yml",
        "source": Path("/home/me/recipes/site.yaml"),
    }
    return Recipe.model_validate({**values, "root": Path("/home/me"), **more})
