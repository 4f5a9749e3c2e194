"""A client of OCI registries (distribution-spec 1.1).

===============  ==================================================================================
``credentials``  where user names and passwords come from
``auth``         Basic and Bearer authentication
``transport``    requests: scheme, redirects, retries, limits
``errors``       hints for what a registry refuses
``manifests``    manifests and tags
``blobs``        blobs: query, download, mount
``answer``       responses, read within limits
``meter``        the progress of a transfer
``source``       where the bytes of an upload come from, hashed while they are sent
``upload``       blobs: upload, in one request or in chunks
``referrers``    artifacts attached to an image
``oras``         SIF files as artifacts
``client``       what the rest of builder uses: one registry
``origins``      clients of the registries that layers come from
``push, pull``   whole images
===============  ==================================================================================
"""
