"""Fetches locked packages: verified archives on this machine.

``packages`` is the entry point. It asks ``places`` where a package may be, takes a local file if
``verify`` finds that its hash matches the lock, and otherwise lets ``download`` fetch it.
``failure`` words the errors.
``venv`` and ``condapackage`` make a conda package of the base's Python.
"""
