"""Registries: an OCI distribution client, credentials, pushing and pulling images."""
