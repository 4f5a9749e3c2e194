"""Engines: ways to build an OCI image or a SIF from a recipe and its lock."""
