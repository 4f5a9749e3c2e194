"""Reads SIF files (Singularity Image Format), and assembles them from cached partitions."""
