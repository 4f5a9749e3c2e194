"""Engines: ways to build an OCI image or a SIF from a recipe and its lock."""

#: Names of the engines, and the class of each in the module of the same name.
ENGINES = {"layered": "Layered", "docker": "Docker", "apptainer": "Apptainer", "cotainr": "Cotainr"}
