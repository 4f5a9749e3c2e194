"""The cache on disk: blobs by digest, records, files written whole or not at all, and what may be removed."""
