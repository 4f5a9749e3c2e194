from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.settings import Settings
from tests.support.image_kit import settings


@pytest.fixture
def given(tmp_path: Path) -> Settings:
    return settings(tmp_path)
