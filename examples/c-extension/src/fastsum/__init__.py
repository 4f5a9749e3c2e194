"""Adds the numbers from 1 to N."""

import sys

from rich import print

from ._sum import total


def main() -> None:
    """Print the sum for the N of the command line."""
    print(total(int(sys.argv[1])))
