"""Probes of NCCL: the library, the interface, and the network that it uses."""

from __future__ import annotations

import pytest

from builder.bench.core import Place
from builder.bench.machine.network import transport
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, ask_run, make_run
from tests.unit.bench.conftest import WriteFile


def test_no_nccl() -> None:
    """One GPU works without NCCL, several do not."""
    torch = fake_torch("CUDA")
    assert ask("nccl.version", torch, expect="nvidia").seen == "NCCL 2.21.5"
    torch.distributed.is_nccl_available = lambda: False
    assert ask("nccl.version", torch, expect="nvidia").status == "warn"
    torch.cuda.device_count = lambda: 4
    found = ask("nccl.version", torch, expect="nvidia")
    assert found.status == "fail" and "several GPUs" in found.advice


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("hsn", "pass"),
        ("hsn0", "pass"),
        ("=hsn0,hsn1", "pass"),
        ("=hsn", "fail"),
        ("ib0", "fail"),
        ("^lo", "pass"),
        ("^hsn,lo", "fail"),
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
    found = ask("nccl.interface", fake_torch("HIP"), place=Place(0, 8, 0, 4))
    assert found.status == "warn" and "hsn0 hsn1" in found.seen and "NCCL_SOCKET_IFNAME=hsn" in found.advice
    assert ask("nccl.interface", fake_torch("HIP")).status == "pass"  # one node


OFI = """nid1:1:1 [0] NCCL INFO NCCL version 2.19.4+cuda12.2
nid1:1:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.7.4
nid1:1:9 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
nid1:1:9 [0] NCCL INFO Using network AWS Libfabric
nid1:1:9 [0] NCCL INFO Channel 00/0 : 0[3000] -> 1[41000] via P2P/IPC/read
"""
RCCL = """nid5:2:2 [0] NCCL INFO RCCL version 2.18.3+hip6.0 HEAD:2f6d59e+
nid5:2:2 [0] NCCL INFO NET/OFI Using aws-ofi-rccl 1.4.0
nid5:2:2 [0] NCCL INFO NET/OFI Selected Provider is cxi
"""
SOCKETS = """gpu1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
gpu1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
gpu1:7:9 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>
gpu1:7:9 [0] NCCL INFO Using network Socket
gpu1:7:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
INFINIBAND = """n:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]
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
    assert transport(INFINIBAND)["network"] == "IB"
    assert transport("nothing of interest")["network"] == ""


def test_log_of_rccl() -> None:
    found = transport(RCCL)
    assert (found["library"], found["network"]) == ("RCCL", "OFI (cxi)")


@pytest.mark.parametrize(
    ("log", "fabric", "nodes", "status"),
    [
        (OFI, "/sys/class/cxi/cxi0/x", 2, "pass"),
        (SOCKETS, "/sys/class/cxi/cxi0/x", 2, "fail"),
        (SOCKETS, "/sys/class/cxi/cxi0/x", 1, "warn"),
        (SOCKETS, "/sys/class/infiniband/mlx5_0/x", 2, "fail"),
        (SOCKETS, "", 2, "warn"),
        (SOCKETS, "", 1, "pass"),
        (INFINIBAND, "/sys/class/infiniband/mlx5_0/x", 2, "pass"),
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
    assert status != "fail" or ("aws-ofi" in found.advice and "Socket" in found.seen)
