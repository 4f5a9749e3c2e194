"""The folders that a run on this machine binds."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.deliver.launch.here import bind_folder
from builder.deliver.site.containers import ContainerRequest


@pytest.mark.parametrize("folder", ["/", "/opt", "/usr"])
def test_folders_that_hide_the_image(folder: str) -> None:
    """A folder that would hide the environment or the system of the image is not bound."""
    request = ContainerRequest("", ("true",))
    assert bind_folder(request, Path(folder)) == request
    assert bind_folder(request, Path("/srv"), prefix="/srv/env") == request
    bound = bind_folder(ContainerRequest("", ("true",), binds=("/data:/srv",)), Path("/srv"))
    assert bound.binds == ("/data:/srv",) and bound.workdir == "/srv", "an own mount at this place wins"
