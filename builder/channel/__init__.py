"""Conda channels made here, for places where none can be reached."""
