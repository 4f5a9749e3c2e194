"""The version, in one place, and the check that this Python is new enough.

Each way to start builder reads this module first, and so does its installation
(``[tool.hatch.version]``): pip up to 24 would name some dependency instead. It must run under old
versions of Python.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("builder needs Python 3.11 or newer, this is " + sys.version.split()[0])

__version__ = "0.2.0"
