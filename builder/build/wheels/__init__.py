"""Wheels of source packages, built in the image of a target and checked.

=================  =====================================================================================
module             what it does
=================  =====================================================================================
``backend``        what a source needs for its build (PEP 518)
``requirements``   build requirements as wheels on this machine
``driver``         the program that runs in the image and calls the build backend (PEP 517)
``run``            one build in a container
``check``          what a finished wheel must fulfil
``builder``        :class:`ImageWheelBuilder` connects them, with a cache
``locked``         the built wheels of a lock: the folder ``wheels/``, and what no place has
=================  =====================================================================================
"""
