"""Probes of NCCL and RCCL: the library, the interface, and the network that is in use."""

from __future__ import annotations

import os

from ..core import Item, Run, fail, skip, warn
from ..machine.network import (
    fast_fabric,
    has_direct_links,
    interfaces,
    matches_interface,
    slingshot_interfaces,
    transport,
    without_cudart,
)

#: How NCCL reaches a fabric. The site's documentation names the paths of its libraries.
_FABRIC_ADVICE = {
    "Slingshot": "put the site's libfabric and aws-ofi-nccl (AMD: aws-ofi-rccl) into the container and their "
    "folders on LD_LIBRARY_PATH, or name the plugin in NCCL_NET_PLUGIN",
    "InfiniBand": "the image needs libibverbs (rdma-core), and the container /dev/infiniband; "
    "NCCL_IB_DISABLE must not be set",
}
_P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")


def probe_interface(run: Run) -> str:
    """Check that NCCL_SOCKET_IFNAME (of RCCL, too) and GLOO_SOCKET_IFNAME name interfaces here."""
    present = interfaces()
    shown = " ".join(present) or "none"
    without_nccl = run.torch is not None and run.build == "CPU"
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")[: 1 if without_nccl else 2]
    found = {variable: os.environ[variable] for variable in variables if os.environ.get(variable)}
    for variable, value in found.items():
        if not any(matches_interface(value, name) for name in present):
            seen = f"{variable}={value}, but the interfaces are: {shown}"
            raise fail(seen, f"set {variable} to an interface of this node, or unset it")
    _check_slingshot(run)
    set_here = " ".join(f"{variable}={value}" for variable, value in found.items())
    return set_here or f"not set; interfaces: {shown}"


def _check_slingshot(run: Run) -> None:
    """Raise a warning if NCCL may not find the fast network between several nodes."""
    fast = slingshot_interfaces()
    several_nodes = 0 < run.place.local_ranks < run.place.ranks
    if fast and several_nodes and not os.environ.get("NCCL_SOCKET_IFNAME"):
        seen = f"NCCL_SOCKET_IFNAME is not set; interfaces of Slingshot: {' '.join(fast)}"
        prefix = fast[0].rstrip("0123456789")
        raise warn(seen, f"use the fast network: export NCCL_SOCKET_IFNAME={prefix}")


def probe_transport(run: Run) -> str:
    """Return the network and the links that NCCL uses, from its log after the collectives."""
    if not run.nccl_log:
        raise skip("no collective was measured with NCCL or RCCL")
    log = transport(run.nccl_log)
    summed = next((item for item in run.results if item["id"] == "allreduce.node"), {})
    seen = (
        f"{log['library'] or 'NCCL'} {log['version']}, network: {log['network'] or 'none'}, "
        f"between GPUs: {' '.join(log['paths']) or 'not reported'}"
    )
    if summed.get("algorithm"):
        seen += f", sums by {summed['algorithm']}"
    _check_network(run, log, seen)
    _check_links(run, log, seen)
    return seen


def _check_network(run: Run, log: Item, seen: str) -> None:
    """Raise an outcome if NCCL fell back to TCP sockets."""
    if log["network"] != "Socket":
        return
    if advice := without_cudart(run.nccl_log):
        raise fail(seen, advice)
    several_nodes = len(set(run.hosts)) > 1
    fabric = fast_fabric()
    if fabric:
        advice = f"about ten times slower than this node's {fabric}: {_FABRIC_ADVICE[fabric]}"
        outcome = fail if several_nodes else warn
        raise outcome(seen, f"NCCL fell back to TCP sockets, {advice}")
    if several_nodes:
        advice = "this is slow if the site has a faster network"
        raise warn(seen, f"NCCL uses TCP sockets between nodes: {advice}")


def _check_links(run: Run, log: Item, seen: str) -> None:
    """Raise a warning if GPUs with direct links do not use them."""
    peers = run.hosts.count(run.hosts[run.place.rank]) if run.hosts else 0
    direct = any(path.startswith("P2P") for path in log["paths"])
    if peers < 2 or direct or not log["paths"]:
        return
    if not has_direct_links(run.torch.cuda.get_device_name(run.index)):
        return
    set_here = [f"{name}={os.environ[name]}" for name in _P2P_VARIABLES if os.environ.get(name)]
    advice = "run all ranks of a node in one container, "
    advice += "with the host's /dev/shm and IPC (--ipc=host), and show each rank all GPUs"
    if set_here:
        advice = f"unset {' '.join(set_here)}"
    raise warn(seen, f"the GPUs' direct links are not used: {advice}")
