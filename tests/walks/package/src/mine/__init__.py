"""The package of a project."""


def hello():
    """Print which version of the code runs."""
    print("one")
