"""``mpi`` starts processes like ``srun``. The container uses the MPI library of the host."""

from __future__ import annotations

from builder.config.site import Additions
from builder.errors import UsageError
from builder.site.launchers.srun import SrunLauncher


class MpiLauncher(SrunLauncher):
    """Tasks of srun that communicate with the host's MPI."""

    name = "mpi"
    binds_cpus = False

    def check(self) -> None:
        if self.recipe.site.mpi is None:
            raise UsageError(
                f"{self.recipe.site_title}: the recipe has no 'mpi:'",
                f"add the host's MPI to site.mpi in {self.recipe.source}, or use --launcher srun",
            )
        super().check()

    def additions(self) -> tuple[Additions, ...]:
        mpi = self.recipe.site.mpi
        assert mpi is not None
        return (mpi, *super().additions())
