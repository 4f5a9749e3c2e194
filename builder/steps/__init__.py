"""Build steps: commands that run in an image, and the layer of what they change.

================  ======================================================================================
module            what it does
================  ======================================================================================
``recipe``        the steps that a recipe asks for
``architecture``  whether this machine can run them
``cache``         :func:`cached_step`: the layer of a step, which runs only if its inputs are new
``run``           :func:`run_step` chooses the runner and makes the layer
``containers``    a step in docker or podman; the user-namespace runner is :mod:`builder.run.userns`
``changes``       from what a step left to the entries of its layer
``compare``       what differs between the layers of two runs (``build --check-reproducible``)
``job``           the values that these modules exchange, and the log of a step
``image``         an image of some layers, in which a step can run
``apt_base``      what a base says about its apt
``apt_network``   how that apt reaches the archives
``apt_solve``     when locking: which OS packages ``base_packages`` means
``apt_install``   when building: the layer of these OS packages
================  ======================================================================================
"""
