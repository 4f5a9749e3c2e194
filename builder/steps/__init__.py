"""Build steps: commands that run in an image, and the layer of what they change.

================  ======================================================================================
module            what it does
================  ======================================================================================
``recipe``        the steps that a recipe asks for, and whether this machine can run them
``run``           :func:`cached_step` runs a step only if its inputs are new, :func:`run_step` always
``containers``    a step in docker or podman; the user-namespace runner is :mod:`builder.run.userns`
``changes``       from what a step left to the entries of its layer
``compare``       what differs between the layers of two runs (``build --check-reproducible``)
``job``           the values that these modules exchange
``apt_base``      what a base says about its apt, and how that apt reaches the archives
``apt_solve``     when locking: which OS packages ``base_packages`` means
``apt_install``   when building: the layer of these OS packages
================  ======================================================================================
"""
