"""Publishing built images, and pulling published ones.

``publish`` shows all steps in their order. ``destination`` is a registry's repository or an OCI
layout; ``tags`` checks and moves tags; ``testers`` is the test that has to pass before, by the
rule of ``smoke_record``; ``read_back`` pushes and reads back; ``attest`` makes and attaches SBOM and
provenance. ``pull`` is the other direction, with podman in ``engines``; ``sides`` are the two images
of a comparison.
"""
