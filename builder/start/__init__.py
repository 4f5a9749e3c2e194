"""The start of a project: what a folder contains, and the recipe for it (``builder init``)."""
