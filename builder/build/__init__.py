"""A lock becomes an image or a SIF.

In reading order:

===============  ==================================================================================
room             content
===============  ==================================================================================
``engines``      ``layered`` is the whole build on one page; docker, apptainer and cotainr beside it
``fetch``        downloads of a lock's packages: parallel, resumed, verified
``bases``        base images: registries, layouts, archives, ``debian:SUITE``, SIFs
``bytecode``     compiled modules: the container that makes them, and their layers
``steps``        build steps and OS packages, and their layers
``image``        config and manifest; files of builder and recipe; archives, conversions
``sources``      sources of packages, pinned and unpacked: git objects, archives, folders
``wheels``       wheels of source packages, built in the image of a target
``run``          runners: docker, podman, podman-hpc, apptainer, and ``userns``
===============  ==================================================================================

This house moves no tag and knows no scheduler. It runs no code of a package on the host: what has
to run does so in a container, by ``run``. Bytes of a layer depend on the lock and the recipe, never
on the host, the runner or the number of cores.

- Why not dulwich or pygit2: builder fetches single commits with the git of the machine, which knows
  its ssh and certificates, and reads objects without a checkout.
- Why not podman's Python package: it needs the socket of a service; podman-hpc is a command only.
- docker's package streams images into an engine; spython runs one command of the engine apptainer.
"""
