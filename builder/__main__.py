"""``python -m builder`` and the console script; Ctrl-C ends it quietly, also while it still imports."""

import sys


def main() -> None:
    try:
        from builder.interrupts import catch_ctrl_c

        catch_ctrl_c()
        from builder.cli import main as command_line

        command_line()
    except KeyboardInterrupt:  # before the command started, or after it ended
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
