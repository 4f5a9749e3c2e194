"""Limits of the shipped sites, as their documents state them: written here again, apart from the site files.

A row fails when the value in the site file changes. Read the document before you change the row.
"""

from __future__ import annotations

from typing import Any

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job import Resources
from builder.deliver.site.job_plan import check_request
from builder.deliver.site.limits import check_limits
from builder.deliver.site.request import JobRequest
from builder.lock.config.fields import seconds
from builder.lock.config.queues import Queue
from builder.lock.config.recipe import Recipe
from builder.lock.config.sites import PACKAGE_FOLDER, read_site, yaml_files
from tests.support.image_kit import recipe

#: Site, partition, QOS, GPUs of a node, most nodes, longest time.
MOST = [
    # docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/partitions (2025-02), sinfo in LUMI's course (2026-04)
    ("lumi-g", "small-g", "", 8, 4, "3-00:00"),
    ("lumi-g", "standard-g", "", 8, 1024, "2-00:00"),
    ("lumi-g", "standard", "", 0, 512, "2-00:00"),
    ("lumi-g", "debug", "", 0, 4, "0-00:30"),
    # tables of the AI Factory's courses (2026)
    ("lumi-g", "dev-g", "", 8, 8, "0-02:00"),
    # docs.olcf.ornl.gov/systems/frontier_user_guide.html (2026-07-07)
    ("frontier", "batch", "normal", 8, 9472, "0-12:00"),
    ("frontier", "extended", "normal", 8, 64, "1-00:00"),
    # docs.cscs.ch/clusters: clariden (2026-06-09), daint (2026-07-15), santis (2026-06-17)
    ("alps-clariden", "debug", "", 4, 4, "0-00:22"),
    ("alps-clariden", "xfer", "", 0, 1, "1-00:00"),
    ("alps-daint", "debug", "", 4, 2, "0-00:30"),
    ("alps-santis", "debug", "", 4, 2, "0-00:30"),
    # docs.alliancecan.ca/wiki/Trillium_Quickstart (2026-05-08)
    ("alliance-trillium", "", "", 4, 25, "1-00:00"),
    ("alliance-trillium", "debug", "", 4, 2, "0-00:30"),
    # docs.cirrus.ac.uk/user-guide/batch (2026-08-04)
    ("cirrus", "standard", "standard", 0, 128, "2-00:00"),
    ("cirrus", "standard", "short", 0, 2, "0-00:20"),
    ("cirrus", "standard", "long", 0, 16, "4-00:00"),
    ("cirrus", "highmem", "highpriority", 0, 64, "2-00:00"),
    ("cirrus", "standard", "lowpriority", 0, 64, "1-00:00"),
    # docs.nersc.gov/jobs/policy (as copied by users in 2026-09)
    ("perlmutter", "", "debug", 4, 8, "0-00:30"),
    ("perlmutter", "", "interactive", 4, 4, "0-04:00"),
    ("perlmutter", "", "shared", 2, 1, "2-00:00"),
    # docs.hpc.cineca.it/hpc/leonardo.html (as copied in 2026-05 and 2026-06; sacctmgr of 2026-09)
    ("leonardo", "boost_usr_prod", "boost_qos_dbg", 4, 8, "0-00:30"),
    ("leonardo", "boost_usr_prod", "boost_qos_bprod", 4, 256, "1-00:00"),
    ("leonardo", "boost_usr_prod", "boost_qos_lprod", 4, 8, "4-00:00"),
    # apps.fz-juelich.de/jsc/hps/juwels (undated copy)
    ("juwels-booster", "develbooster", "", 4, 4, "0-02:00"),
    # bsc.es/supportkc/docs/MareNostrum5 (as translated by TRUBA in 2025)
    ("marenostrum5", "acc", "acc_ehpc", 4, 100, "3-00:00"),
    ("marenostrum5", "acc", "acc_debug", 4, 8, "0-02:00"),
]
#: Site, partition, QOS, GPUs of a node, nodes, longest time of a job of this size; from the same documents.
LONGEST = [
    ("frontier", "batch", "normal", 8, 91, "0-02:00"),
    ("frontier", "batch", "normal", 8, 92, "0-06:00"),
    ("frontier", "batch", "normal", 8, 183, "0-06:00"),
    ("frontier", "batch", "normal", 8, 184, "0-12:00"),
    ("frontier", "batch", "debug", 8, 1, "0-02:00"),
    ("alps-clariden", "normal", "", 4, 200, "0-12:00"),
    ("alps-clariden", "low", "", 4, 200, "1-00:00"),
    ("alps-clariden", "debug", "", 4, 1, "0-01:30"),
    ("alps-clariden", "debug", "", 4, 2, "0-00:45"),
    ("alps-daint", "normal", "", 4, 200, "1-00:00"),
    ("alliance-trillium", "debug", "", 1, 1, "0-02:00"),
    # apps.fz-juelich.de/jsc/hps/jupiter (2026-09-02)
    ("jupiter", "booster", "", 4, 16, "0-12:00"),
    # docs.alliancecan.ca/wiki/TamIA (2026-08-14)
    ("alliance-tamia", "", "", 4, 8, "1-00:00"),
    # servicedesk.surf.nl/wiki, Snellius partitions (undated copy)
    ("snellius-h100", "gpu_h100", "", 4, 4, "5-00:00"),
    # users' notes of 2026-09: 24:00:00 is refused
    ("isambard-ai", "", "", 4, 4, "0-23:59"),
]
#: Site, partition, QOS, GPUs of a node, nodes, time of a job that is refused, and the reason.
REFUSED = [
    ("alliance-trillium", "", "", 2, 1, "0-01:00", "allows only 1 or 4 GPUs"),
    ("alliance-trillium", "", "", 1, 1, "0-00:14", "requires at least 00:15:00"),
    ("jupiter", "booster", "", 2, 1, "0-01:00", "allows only 4 GPUs"),
    ("alliance-tamia", "", "", 1, 1, "0-01:00", "allows only 4 GPUs"),
    ("perlmutter", "", "shared", 3, 1, "0-01:00", "allows at most 2"),
    ("perlmutter", "", "preempt", 4, 1, "0-01:00", "requires at least 02:00:00"),
    ("leonardo", "boost_usr_prod", "boost_qos_bprod", 4, 64, "0-01:00", "requires at least 65"),
    ("cirrus", "standard", "largescale", 0, 128, "0-01:00", "requires at least 129"),
    ("lumi-g", "small", "", 1, 1, "0-01:00", "have no GPUs"),
]


def shipped(name: str) -> Recipe:
    return recipe(site=read_site(name, yaml_files(PACKAGE_FOLDER)).site)


def check(row: tuple[Any, ...], *, nodes: int = 0, minutes: int = 0) -> None:
    """Checks the job of a row, with this many more nodes or minutes."""
    name, partition, qos, gpus, count, time = row
    total = seconds(time) // 60 + minutes
    resources = Resources(count + nodes, gpus, tasks=1)
    limit = f"{total // 1440}-{total % 1440 // 60:02}:{total % 60:02}"
    check_limits(shipped(name), resources, Queue(partition=partition, qos=qos), limit)


@pytest.mark.parametrize("row", MOST, ids=str)
def test_most_nodes(row: tuple[Any, ...]) -> None:
    check(row)
    with pytest.raises(UsageError, match="allows at most"):
        check(row, nodes=1)


@pytest.mark.parametrize("row", [*MOST, *LONGEST], ids=str)
def test_longest_time(row: tuple[Any, ...]) -> None:
    check(row)
    with pytest.raises(UsageError, match="exceeds the limit"):
        check(row, minutes=1)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_refused(row: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        check(row[:-1])
    assert row[-1] in caught.value.message


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        # docs.cscs.ch/clusters/clariden (2026-06-09): nodes are not shared
        ("alps-clariden", 4),
        ("alps-daint", 4),
        ("alps-santis", 4),
        # docs.olcf.ornl.gov/systems/frontier_user_guide.html (2026-07-07)
        ("frontier", 8),
        ("jupiter", 4),
        ("juwels-booster", 4),
        ("alliance-tamia-h200", 8),
        ("alliance-trillium", 1),
        ("lumi-g", 1),
        ("perlmutter", 1),
        ("chameleon-a100", 1),  # no scheduler
    ],
)
def test_gpus_of_a_job(name: str, gpus: int) -> None:
    """Where jobs get whole nodes, a job uses all GPUs unless it asks for fewer."""
    target = shipped(name)
    account = target.site.slurm.account_example if target.site.slurm else ""
    assert check_request(target, JobRequest(account=account)) == gpus
    assert check_request(target, JobRequest(account=account, nodes=2)) == target.site.node.gpus
