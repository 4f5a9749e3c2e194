"""Probes of NCCL: the library, the interface, and the network that it uses."""

from __future__ import annotations

from typing import Any

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


def test_infiniband_needs_no_variable(root: WriteFile) -> None:
    """NCCL tries interfaces whose names begin with ib first."""
    for name in ("eth0", "ib0", "ibp65s0"):
        root(f"/sys/class/net/{name}/address")
    assert ask("nccl.interface", fake_torch("CUDA"), place=Place(0, 8, 0, 4)).status == "pass"


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
        "faults": [],
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
NO_P2P_OF_2_10 = NO_P2P.replace("SHM/direct/direct", "direct shared memory")


def transport_of(name: str, log: str, hosts: list[str], **fields: Any) -> Any:
    torch = fake_torch("HIP" if "AMD" in name else "CUDA", devices=8, arch="sm_90")
    torch.cuda.get_device_name = lambda index: name
    run = make_run(torch, Place(0, len(hosts), 0, hosts.count(hosts[0])))
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
        ("NVIDIA A100-SXM4-40GB", NO_P2P_OF_2_10, ["a"] * 4, "warn"),
        ("AMD Instinct MI250X", NO_P2P, ["a"] * 8, "warn"),
        ("AMD Instinct MI300A", NO_P2P, ["a"] * 4, "warn"),
        ("AMD Instinct MI210", NO_P2P, ["a"] * 4, "pass"),  # a card: bridges are optional
        ("NVIDIA A100 80GB PCIe", NO_P2P, ["a"] * 4, "pass"),  # two sockets
        ("NVIDIA H100 NVL", NO_P2P, ["a"] * 4, "pass"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", NO_P2P, ["a"] * 2, "pass"),  # slices have no links
        ("Tesla V100-SXM2-16GB", NO_P2P, ["a"] * 4, "warn"),
        ("NVIDIA GH200 120GB", NO_P2P, ["a", "b"], "pass"),  # one GPU per node
        ("NVIDIA H200", P2P.replace("Channel", "Other"), ["a"] * 4, "pass"),  # no path is reported
    ],
)  # fmt: skip
def test_direct_links(name: str, log: str, hosts: list[str], status: str) -> None:
    """GPUs with direct links use them; cards for PCIe may have none."""
    found = transport_of(name, log, hosts)
    assert found.status == status, found
    assert status == "pass" or "--ipc=host" in found.advice


def test_direct_links_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert "unset NCCL_P2P_DISABLE=1" in transport_of("NVIDIA H200", NO_P2P, ["a"] * 2).advice


@pytest.mark.parametrize(
    ("name", "gpus", "algorithm", "status"),
    [
        ("NVIDIA H200", 8, "nvls", "pass"),
        ("NVIDIA H200", 8, "ring", "warn"),
        ("NVIDIA H200", 8, "", "pass"),  # an old NCCL does not report it
        ("NVIDIA H200", 4, "ring", "pass"),  # NCCL chooses the ring for four GPUs
        ("NVIDIA H100 PCIe", 8, "ring", "pass"),
    ],
)
def test_sums_in_the_switch(name: str, gpus: int, algorithm: str, status: str) -> None:
    found = transport_of(name, P2P, ["a"] * gpus, algorithm=algorithm)
    assert found.status == status, found
    assert status == "pass" or ("NVLS" in found.seen and "fabric manager" in found.advice)


def test_small_arrays() -> None:
    """NCCL may use rings for small arrays: if no others fitted the time, nothing is known of large ones."""
    found = transport_of("NVIDIA H200", P2P, ["a"] * 8, algorithm="ring", size=16 << 20)
    assert found.status == "pass"


def test_ring_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert transport_of("NVIDIA H200", P2P, ["a"] * 8, algorithm="ring").status == "pass"


def test_switched_off_in_a_file(root: WriteFile) -> None:
    """NCCL reads /etc/nccl.conf, too."""
    root("/etc/nccl.conf", "NCCL_ALGO=Ring\nNCCL_P2P_DISABLE=1\n")
    assert transport_of("NVIDIA H200", P2P, ["a"] * 8, algorithm="ring").status == "pass"
    assert "unset NCCL_P2P_DISABLE=1" in transport_of("NVIDIA H200", NO_P2P, ["a"] * 2).advice


@pytest.mark.parametrize(
    "text",
    [
        "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 'odd'.",
        "NCCL WARN P2P is disabled between NVLINK connected GPUs 0 and 3. This should not be the case",
    ],
)
def test_faults_that_nccl_names(text: str) -> None:
    found = transport_of("NVIDIA H200", P2P + f"g1:7:9 [0] {text}\n", ["a"] * 8, algorithm="ring")
    assert found.status == "fail" and text[10:40] in found.seen and "nvlink" in found.advice
