"""Engines: ways to turn a recipe and its lock into an OCI image or a SIF."""
