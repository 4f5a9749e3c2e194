"""The start of a project: the files of a folder, and a recipe for them (``builder init``)."""
