"""The benchmark in every image (``/opt/builder/smoke.py``): is this machine used at full speed?

Probes look at the image and the machine. Measurements time an operation whose result is checked
against a reference. All of them run in child processes, one per rank. If a driver, a network or
torch hangs or crashes there, the parent process still writes the report.

This package needs Python 3.8 or newer, the standard library and the framework that it tests (torch,
or TensorFlow or JAX with NumPy, or none). It imports nothing else of builder.
``builder/image/smoke_program.py`` packs it into one zip file, which Python runs like a script.
Therefore it uses relative imports only, and reads its data file with ``pkgutil``.

    options.py        the command line
    main.py           the whole run, from the command line to the exit code
    core.py           Run (what probes and measurements share), Outcome, Probe, Measurement
    examine.py        what a rank does: probes, facts, measurements, in their order
    probes/           one function per probe; the list of all probes is in probes/__init__.py
    measurements/     one function per measurement; the list is in measurements/__init__.py
    frameworks/       TensorFlow and JAX behind one interface
    machine/          facts about this machine: /proc, /sys, NVML, torch
    ranks/            processes, the protocol between them, and their results as one
    report.py         verdict, table, output

To add a probe or a measurement, write a function and add a line to the list.
"""
