"""Probes of NCCL and RCCL: the library, the interface, and the network that is in use."""

from __future__ import annotations

import os

from ..core import Run, fail, skip, warn
from ..machine.network import fast_fabric, fast_interfaces, interfaces, matches_interface, transport


def probe_version(run: Run) -> str:
    """torch has NCCL or RCCL, for several GPUs."""
    name = {"CUDA": "NCCL", "HIP": "RCCL"}.get(run.build)
    if name is None:
        raise skip("CPU build")
    if run.options.expect == "none":
        raise skip("the recipe is for CPUs")

    distributed = run.torch.distributed
    if not (distributed.is_available() and distributed.is_nccl_available()):
        several = run.place.ranks > 1 or run.gpus > 1
        outcome = fail if several else warn
        raise outcome(f"torch has no {name}", f"several GPUs cannot work together: lock a torch with {name}")
    version = run.torch.cuda.nccl.version()
    number = ".".join(map(str, version)) if isinstance(version, tuple) else version
    return f"{name} {number}"


def probe_interface(run: Run) -> str:
    """NCCL_SOCKET_IFNAME (RCCL reads it, too) and GLOO_SOCKET_IFNAME name interfaces of this node."""
    present = interfaces()
    shown = " ".join(present) or "none"
    found = []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = os.environ.get(variable)
        unused = variable.startswith("NCCL") and run.torch is not None and run.build == "CPU"
        if not value or unused:
            continue
        if not any(matches_interface(value, name) for name in present):
            seen = f"{variable}={value}, but the interfaces are: {shown}"
            raise fail(seen, f"set {variable} to an interface of this node, or unset it")
        found.append(f"{variable}={value}")

    fast = fast_interfaces()
    several_nodes = 0 < run.place.local_ranks < run.place.ranks
    if fast and several_nodes and not os.environ.get("NCCL_SOCKET_IFNAME"):
        seen = f"NCCL_SOCKET_IFNAME is not set; fast interfaces: {' '.join(fast)}"
        raise warn(seen, f"use the fast network: export NCCL_SOCKET_IFNAME={fast[0].rstrip('0123456789')}")
    return " ".join(found) or f"not set; interfaces: {shown}"


def probe_transport(run: Run) -> str:
    """The network that NCCL uses, from NCCL's log. Runs after the collectives."""
    if not run.nccl_log:
        raise skip("no collective was measured with NCCL or RCCL")
    log = transport(run.nccl_log)
    network = log["network"]
    seen = (
        f"{log['library'] or 'NCCL'} {log['version']}, network: {network or 'none'}, "
        f"between GPUs: {' '.join(log['paths']) or 'not reported'}"
    )
    if network != "Socket":
        return seen

    several_nodes = len(set(run.hosts)) > 1
    fabric = fast_fabric()
    if fabric:
        advice = (
            f"NCCL fell back to TCP sockets, about ten times slower than this node's {fabric}: "
            "put aws-ofi-nccl (AMD: "
            "aws-ofi-rccl) and libfabric on LD_LIBRARY_PATH (podman-hpc --nccl, or the site's bind mounts)"
        )
        outcome = fail if several_nodes else warn
        raise outcome(seen, advice)
    if several_nodes:
        raise warn(seen, "NCCL uses TCP sockets between nodes: this is slow if the site has a faster network")
    return seen
