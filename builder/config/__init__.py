"""Recipes, environments and settings as checked models."""
