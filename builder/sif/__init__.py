"""SIF files (Singularity Image Format): read, and assembled from cached partitions."""
