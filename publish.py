#!/usr/bin/env python3
"""Build, smoke-test, tag and push the images of a recipe group: ``python publish.py --ml``.

Asks before it prunes, builds and publishes; ``-y`` answers yes to every question (for CI). See
``builder publish`` for single targets.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("builder needs Python 3.11 or newer, this is " + sys.version.split()[0])

from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from builder.cli.groups import main

if __name__ == "__main__":
    main(Path(__file__).resolve().parent)
