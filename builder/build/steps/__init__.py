"""Build steps: commands that run in an image, and the layer of their changes.

================  ================================================================================
module            what it does
================  ================================================================================
``recipe``        the steps that a recipe asks for, and whether this machine can run them
``run``           :func:`cached_step` runs a step if its inputs are new, :func:`run_step` always; in
                  namespaces, docker or podman
``changes``       from the tree that a step left to the entries of its layer; the differences of
                  two runs' layers (``build --check-reproducible``)
``apt_base``      the apt of a base, and how it reaches the archives
``apt_solve``     when locking: the OS packages that ``base_packages`` means
``apt_install``   when building: the layer of these OS packages
================  ================================================================================
"""
