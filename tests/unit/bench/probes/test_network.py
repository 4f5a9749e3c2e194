"""Probes of NCCL: the library, the interface, and the network that it uses."""

from __future__ import annotations

from typing import Any

import pytest

from builder.bench.core import RankPosition
from builder.bench.machine.network import transport
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, ask_run, make_run
from tests.unit.bench.conftest import WriteFile


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("hsn", "pass"),
        ("hsn0", "pass"),
        ("ib0,hsn", "pass"),
        ("=hsn0,hsn1", "pass"),
        ("ib0", "fail"),
        ("^lo", "pass"),
        ("", "pass"),
    ],
)
def test_socket_ifname(value: str, status: str, root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL_SOCKET_IFNAME must name an interface of this node."""
    for name in ("hsn0", "hsn1", "lo"):
        root(f"/sys/class/net/{name}/address")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", value)
    found = ask("nccl.interface", fake_torch("CUDA"))
    assert found.status == status, found
    if status == "fail":
        assert f"NCCL_SOCKET_IFNAME={value}" in found.seen and "hsn0 hsn1 lo" in found.seen


def test_fast_network_that_is_not_named(root: WriteFile) -> None:
    for name in ("eth0", "hsn0", "hsn1"):
        root(f"/sys/class/net/{name}/address")
    found = ask("nccl.interface", fake_torch("HIP"), place=RankPosition(0, 8, 0, 4))
    assert found.status == "warn" and "hsn0 hsn1" in found.seen and "NCCL_SOCKET_IFNAME=hsn" in found.advice
    assert ask("nccl.interface", fake_torch("HIP")).status == "pass"  # one node


OFI = """nid1:1:1 [0] NCCL INFO NCCL version 2.19.4+cuda12.2
nid1:1:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.7.4
nid1:1:9 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
nid1:1:9 [0] NCCL INFO Using network AWS Libfabric
nid1:1:9 [0] NCCL INFO Channel 00/0 : 0[3000] -> 1[41000] via P2P/IPC/read
"""
SOCKETS = """gpu1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
gpu1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
gpu1:7:9 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>
gpu1:7:9 [0] NCCL INFO Using network Socket
gpu1:7:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""


def test_log_of_nccl() -> None:
    assert transport(OFI) == {
        "library": "NCCL",
        "version": "2.19.4+cuda12.2",
        "network": "OFI (cxi)",
        "paths": ["P2P/IPC/read"],
    }
    found = transport(SOCKETS)
    assert (found["network"], found["paths"]) == ("Socket", ["SHM/direct/direct"])
    assert transport("nothing of interest")["network"] == ""


def test_plugin_without_the_library_of_cuda() -> None:
    """Where aws-ofi-nccl gave up and NCCL uses TCP, the hint is not that for a missing plugin."""
    run = make_run(fake_torch("CUDA"))
    missing = "libcudart.so: cannot open shared object file: No such file or directory"
    run.nccl_log = f"h:1:2 [0] NCCL WARN NET/OFI Failed to find CUDA Runtime library: {missing}\n{SOCKETS}"
    found = ask_run("nccl.transport", run)
    assert found.status == "fail" and "cuda-cudart-dev" in found.advice, found


@pytest.mark.parametrize(
    ("log", "fabric", "nodes", "status"),
    [
        (OFI, "/sys/class/cxi/cxi0/x", 2, "pass"),
        (SOCKETS, "/sys/class/cxi/cxi0/x", 2, "fail"),
        (SOCKETS, "/sys/class/cxi/cxi0/x", 1, "warn"),
        (SOCKETS, "/sys/class/infiniband/mlx5_0/x", 2, "fail"),
        (SOCKETS, "", 2, "warn"),
        (SOCKETS, "", 1, "pass"),
        ("", "", 1, "skip"),
    ],
)
def test_fallback_to_sockets(log: str, fabric: str, nodes: int, status: str, root: WriteFile) -> None:
    root("/sys/class/net/eth0/address")
    if fabric:
        root(fabric)
    run = make_run(fake_torch("CUDA"))
    run.nccl_log, run.hosts = log, [f"n{i}" for i in range(nodes)]
    found = ask_run("nccl.transport", run)
    assert found.status == status, found
    if status == "fail":
        slingshot = "cxi" in fabric
        assert "Socket" in found.seen and ("aws-ofi" in found.advice) == slingshot
        assert ("NCCL_NET_PLUGIN" if slingshot else "/dev/infiniband") in found.advice
        assert "--nccl" not in found.advice  # an option of one site


P2P = """g1:7:7 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
[2026-11-01 10:00:00] g1:7:9 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 24)
g1:7:9 [0] NCCL INFO Using network IB
g1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
NO_P2P = P2P.replace("P2P/CUMEM/read", "SHM/direct/direct")


def transport_of(name: str, log: str, hosts: list[str], **fields: Any) -> Any:
    torch = fake_torch("HIP" if "AMD" in name else "CUDA", devices=8, arch="sm_90")
    torch.cuda.get_device_name = lambda index: name
    run = make_run(torch, RankPosition(0, len(hosts), 0, hosts.count(hosts[0])))
    run.nccl_log, run.hosts = log, hosts
    summed = {"id": "allreduce.node", "members": hosts.count(hosts[0]), "nodes": 1, "size": 1 << 30}
    run.results.append({**summed, **fields})
    return ask_run("nccl.transport", run)


@pytest.mark.parametrize(
    ("name", "log", "hosts", "status"),
    [
        ("NVIDIA H100 80GB HBM3", P2P, ["a"] * 4, "pass"),
        ("NVIDIA H100 80GB HBM3", NO_P2P, ["a"] * 4, "warn"),
        ("NVIDIA A100-SXM4-40GB", NO_P2P.replace("SHM/direct/direct", "NET/Socket/0"), ["a"] * 4, "warn"),
        ("AMD Instinct MI250X", NO_P2P, ["a"] * 8, "warn"),
        ("AMD Instinct MI210", NO_P2P, ["a"] * 4, "pass"),  # a card: bridges are optional
        ("NVIDIA A100 80GB PCIe", NO_P2P, ["a"] * 4, "pass"),  # two sockets
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", NO_P2P, ["a"] * 2, "pass"),  # slices have no links
        ("NVIDIA GH200 120GB", NO_P2P, ["a", "b"], "pass"),  # one GPU per node
        ("NVIDIA H200", P2P.replace("Channel", "Other"), ["a"] * 4, "pass"),  # no path is reported
    ],
)  # fmt: skip
def test_direct_links(name: str, log: str, hosts: list[str], status: str) -> None:
    """GPUs with direct links use them; cards for PCIe may have none."""
    found = transport_of(name, log, hosts)
    assert found.status == status, found
    assert status == "pass" or "--ipc=host" in found.advice
