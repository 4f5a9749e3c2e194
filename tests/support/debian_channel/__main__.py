"""Makes the Debian channel in the folder given, and prints the value for BUILDER_MIRRORS."""

from __future__ import annotations

import sys
from pathlib import Path

from builder.core.errors import BuilderError
from tests.support.debian_channel import channel_mirrors

try:
    print(channel_mirrors(Path(sys.argv[1])))
except BuilderError as e:
    sys.exit(f"no conda channel: {e.message}")
