"""``python -m builder``."""

import sys

try:
    from builder.cli import main
except KeyboardInterrupt:  # before there is anything to interrupt
    sys.exit(130)

main()
