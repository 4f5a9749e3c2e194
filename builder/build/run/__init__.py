"""Runners: ways to run an image on this host."""

#: In the order in which they are tried. The first unpacks an image once, in seconds; engines load
#: it for each command, in minutes. Where podman-hpc is, podman alone has not the site's settings.
RUNNER_NAMES = ("userns", "podman-hpc", "docker", "podman", "apptainer")
