"""The network between nodes: interfaces, fabrics, and what NCCL's log reports about them."""

from __future__ import annotations

import re

from ..core import Item
from .files import names

#: How NCCL sums: NVSwitch itself adds (NVLink SHARP), in a ring of GPUs, along a tree; empty: not known.
ALGORITHMS = ("", "ring", "tree", "nvls")


def interfaces() -> list[str]:
    """Return the network interfaces of this node."""
    return names("/sys/class/net")


def slingshot_interfaces() -> list[str]:
    """Return the interfaces of Slingshot (hsn0). NCCL finds those of InfiniBand by itself."""
    return [name for name in interfaces() if re.fullmatch(r"hsn\d+", name)]


def fast_fabric() -> str:
    """Return the fast network of this node: ``Slingshot``, ``InfiniBand`` or empty."""
    if names("/sys/class/cxi") or any(name.startswith("hsn") for name in interfaces()):
        return "Slingshot"
    return "InfiniBand" if names("/sys/class/infiniband") else ""


def has_direct_links(name: str) -> bool:
    """Return whether GPUs of this name have links in a node, by NVLink or Infinity Fabric.

    Modules (SXM, OAM) are; slices of them (MIG) do not reach each other. Cards for PCIe may have
    bridges, which their names do not tell.
    """
    if re.search(r"PCI|NVL\b|\bMIG\b", name):
        return False
    return bool(re.search(r"SXM|HBM[23]|\b(H200|G?B[23]00|GH200)\b|\bMI(2[5-9]|3\d)\d", name))


def matches_interface(value: str, name: str) -> bool:
    """Return whether a value of NCCL_SOCKET_IFNAME selects an interface.

    ``hsn,ib`` are beginnings of names. A value with ``=`` or ``^`` (whole names, all others)
    passes.
    """
    return value[0] in "=^" or name.startswith(tuple(value.split(",")))


def algorithm(log: str, size: int) -> str:
    """Return the algorithm of the last all-reduce of ``size`` bytes in NCCL's log.

    It is one of ``ALGORITHMS``. Versions before 2.24 do not write its name.
    """
    found = re.findall(rf"\b{size} Bytes -> Algo (\w+) proto", log)
    if not found:
        return ""
    name = found[-1].lower().replace("nvlstree", "nvls")
    return name if name in ALGORITHMS else ""


def without_cudart(log: str) -> str:
    """Return what to do if NCCL's plugin did not find CUDA's library; empty: its log names none."""
    if "libcudart.so: cannot open" not in log:  # aws-ofi-nccl opens the name without a version
        return ""
    return (
        "NCCL's network plugin cannot open libcudart.so: add cuda-cudart-dev to the environment; "
        "if it is there, name the folder of libcudart.so in LD_LIBRARY_PATH"
    )


def transport(log: str) -> Item:
    """Return the facts in a log written with NCCL_DEBUG=INFO.

    Returns:
        ``library`` (NCCL or RCCL), ``version``, ``network`` (the plugin, such as ``OFI (cxi)``,
        ``IB``, ``Socket``) and ``paths`` (how GPUs reach each other, such as ``P2P/IPC``). Empty if
        not in the log.
    """
    library = re.search(r"\b([NR]CCL) version :?\s*([0-9][\w.+-]*)", log)
    paths = re.findall(r"via (P2P(?:/\w+)*|SHM(?:/\w+)*|NET/\w+)", log)
    return {
        "library": library[1] if library else "",
        "version": library[2] if library else "",
        "network": _network(log),
        "paths": sorted(set(paths)),
    }


def _network(log: str) -> str:
    plugin = _libfabric(log)
    using = re.findall(r"Using network ([\w /-]+?)\s*(?:$|\n)", log)
    if using:
        name = str(using[-1])
        # "AWS Libfabric" is the plugin whose provider has been found above
        return plugin if plugin and name.upper().startswith(("AWS", "OFI", "LIBFABRIC")) else name
    return plugin


def _libfabric(log: str) -> str:
    """Return the loaded plugin (aws-ofi-nccl, -rccl) with its provider: ``OFI (cxi)``; or empty."""
    if not re.search(r"NET/OFI .*(Using aws-ofi|Initializing aws-ofi|Selected [Pp]rovider)", log):
        return ""
    provider = re.search(r"Selected [Pp]rovider is (\S+)", log)
    name = provider[1].rstrip(",(") if provider else "aws-ofi"
    return f"OFI ({name})"
