"""Recipes as validated models."""
