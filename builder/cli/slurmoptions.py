"""Options of jobs: ``--on slurm`` of ``build``, ``smoke`` and ``publish``, and ``--slurm``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from builder.core.errors import refuse

from .options import COUNT, choice, decorated, option, repeated, text_option

if TYPE_CHECKING:
    from builder.deliver.smoke.options import SlurmOptions

#: Where the account comes from without ``--account``: sbatch reads the first variable, srun the second.
ACCOUNT_VARIABLES = ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")
#: Adds ``--slurm`` alone; :func:`builder.deliver.site.slurm.read_slurm` reads its values.
raw_slurm_option = repeated("--slurm", metavar="OPTION")
_ON = choice("--on", of=["slurm"])
_ACCOUNT = text_option("--account", "A")
_TIME = text_option("--time", "T")
_NODES = option("--nodes", type=COUNT, default=1, show_default=True)
#: Adds ``--on``, ``--account``, ``--time`` and ``--slurm``; :func:`take_job_options` takes their values.
slurm_options = decorated(_ON, _ACCOUNT, _TIME, raw_slurm_option)
#: The same and ``--nodes``; :func:`take_job_options` takes their values.
job_options = decorated(slurm_options, _NODES)


def take_job_options(
    values: dict[str, Any], *, runner: str | None = None, image: str = ""
) -> SlurmOptions | None:
    """Take the values of :data:`slurm_options` or :data:`job_options` out of those of a command.

    Args:
        values: the command's parameters.
        runner: the value of ``--runner``; None: the option was not given.
        image: the value of ``--image``.

    Returns:
        The job; None without ``--on slurm``.

    Raises:
        UsageError: an option needs ``--on slurm``, or excludes it, or ``--slurm`` is not valid.
    """
    where, account, time, raw = (values.pop(name) for name in ("on", "account", "time", "slurm"))
    nodes = values.pop("nodes", 1)
    if not where:
        given = {"--account": account, "--time": time, "--slurm": raw, "--image": image}
        given["--nodes"] = nodes != 1
        refuse(given, "{} requires --on slurm", "add --on slurm")
        return None
    about = "{} cannot be combined with --on slurm: the site's recipe names the runtime"
    refuse({"--runner": runner}, about, "leave out one of them")
    from builder.deliver.site.slurm import read_slurm
    from builder.deliver.smoke.options import SlurmOptions

    account = account or next(filter(None, map(os.environ.get, ACCOUNT_VARIABLES)), "")
    more = read_slurm(raw)
    return SlurmOptions(image=image, nodes=nodes, account=account, time=time, slurm=more)
