"""Lines that prepare the host for a job."""

from __future__ import annotations

from builder.config.queues import Slurm
from builder.config.site import Additions, Proxy, Runtime, Site
from builder.site.hostsetup import host_setup, proxy_variables


def test_order() -> None:
    """Proxy and HOME come before modules, which may need both; folders of modules before modules."""
    site = Site(
        slurm=Slurm(),
        proxy=Proxy(url="http://proxy.example.org:3128", no_proxy=("localhost", ".example.org")),
        runtime=Runtime(kind="apptainer", home="/work/{account}/$USER"),
        module_use=("/opt/modules",),
        modules=("a b",),
        setup=("export X=$Y",),
    )
    mpi = Additions(module_use=("$HOME/m",), modules=("mpi", "a b"), setup=("export Z=1",))
    assert host_setup(site, [mpi], account="z19") == [
        "export http_proxy=http://proxy.example.org:3128",
        "export HTTP_PROXY=http://proxy.example.org:3128",
        "export https_proxy=http://proxy.example.org:3128",
        "export HTTPS_PROXY=http://proxy.example.org:3128",
        "export no_proxy=localhost,.example.org",
        "export NO_PROXY=localhost,.example.org",
        'export HOME="/work/z19/$USER"',
        'mkdir -p "$HOME"',
        'export APPTAINER_HOME="$HOME"',
        "module use /opt/modules",
        'module use "$HOME/m"',
        "module load 'a b'",
        "module load mpi",
        "export X=$Y",
        "export Z=1",
    ]
    assert 'export HOME="/work/$SLURM_JOB_ACCOUNT/$USER"' in host_setup(site)


def test_nothing() -> None:
    assert host_setup(Site(slurm=Slurm())) == []


def test_proxy_variables() -> None:
    variables = proxy_variables(Proxy(url="http://p:1"))
    assert variables["https_proxy"] == variables["HTTP_PROXY"] == "http://p:1"
    assert variables["no_proxy"] == "localhost,127.0.0.1"
