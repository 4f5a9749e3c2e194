"""Compiled modules (``.pyc``) of packages in separate layers, the same bytes everywhere."""
