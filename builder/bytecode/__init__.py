"""Compiled modules (``.pyc``) of packages: the same bytes on every machine, in layers of their
own.
"""
