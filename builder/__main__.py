"""``python -m builder`` and the console script; Ctrl-C ends it quietly, also during imports."""

import gc
import os
import sys
from pathlib import Path


def main() -> None:
    if sys.stderr is None:  # 2>&-: the next file that is opened would be the stderr of programs
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        from builder.core.interrupts import catch_ctrl_c

        catch_ctrl_c()
        # A build holds some 100,000 objects (files of packages) and makes few cycles. With Python's
        # threshold, 700, the collector looks through all of them again and again: 3 % of a cold build.
        gc.set_threshold(100_000, 20, 50)
        # pydantic would look for plugins in all installed distributions, and import them
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        from builder.cli import main as command_line

        command_line()
    except KeyboardInterrupt:  # before the command started, or after it ended
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
