"""Publishing built images, and pulling published ones.

``places`` is where images are published to and pulled from; ``publish`` and ``pull`` are the two
directions; ``attest`` makes the SBOM and the provenance that are attached; ``engines`` lets podman
or docker pull.
"""
