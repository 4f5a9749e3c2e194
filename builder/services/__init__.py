"""Servers for training jobs on one machine: MLflow with PostgreSQL and an S3 store, Ray, Prometheus."""
