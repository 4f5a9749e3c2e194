"""``python -m builder``, and the console script: Ctrl-C ends quietly while the command line is still being imported, too."""

import sys


def main() -> None:
    try:
        from builder.cli import main as command_line
    except KeyboardInterrupt:  # nothing was begun
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
