"""Engines turn a recipe and its lock into an image. ``layered`` needs no daemon and no root, and runs nothing."""
