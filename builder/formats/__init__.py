"""What others defined: bytes and protocols, read within limits and written deterministically.

In reading order:

===============  ==================================================================================
room             content
===============  ==================================================================================
``oci``          references, manifests, configs, layouts on disk (image-spec)
``layers``       archives of packages become tar members, and members become layers; conflicts
``trees``        tar and squashfs streams, unpacked file systems, the overlay of layers
``sif``          SIF files: header, descriptors, partitions, metadata
``registry``     a client of OCI registries (distribution-spec)
``net``          HTTP clients, resumed downloads, mirrors, settings of pip and apt
``qemu``         whether this host runs programs for another processor
===============  ==================================================================================

This house knows no recipe, lock or site, and runs no program of a package. A reader of foreign
bytes has a named constant for each limit (docs/security.md). A writer's bytes are the same on every
machine; whatever changes them raises a FORMAT number.

- Why not oras: it would be asked for mounts between repositories, uploads that continue inside a
  blob, and registries without the referrers API; builder's uploads need all three.
- Why not conda-package-streaming: builder needs limits against bombs, and keeps the content of a
  member as a place in one file, so that memory does not depend on the package.
- Why not PySquashfsImage: a squashfs comes from strangers, so each table has a limit; builder also
  writes squashfs, and both sides share the tables.
- Why not pyelftools: ELF files are read while their bytes pass into a layer, without seeking.
- Why not python-debian: lists of packages and ``dpkg``'s status need five fields.
"""
