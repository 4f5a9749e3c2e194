"""Batch scripts and interactive jobs that run a target's image."""

from __future__ import annotations

import os

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.launch.images import TargetImages
from builder.project import Project
from builder.site.command import shell_line
from builder.site.edf import require_engine, with_edf
from builder.site.job_plan import edf_name, plan_job, salloc
from builder.site.render import render
from builder.site.request import JobRequest
from builder.site.shell import command_line


def job_script(
    project: Project, recipe: Recipe, request: JobRequest, *, submit: bool = False
) -> str:
    """Return the batch script of a job.

    Args:
        project: of the target.
        recipe: the target.
        request: the job.
        submit: whether the script will be submitted here: then the registry is asked which image
            the tag names now.

    Raises:
        UsageError: the site cannot run the job, or has no scheduler to submit it to.
        RunnerError: this machine cannot submit jobs of the Container Engine.
    """
    if submit and recipe.site.slurm is None:
        raise UsageError(
            f"{recipe.site_title} has no scheduler to submit jobs to",
            "write the script with --output FILE and run it on the machine",
        )
    if submit and recipe.site.runtime.kind == "edf":
        require_engine(os.environ)
    plan_job(recipe, request)  # what is wrong is reported before the registry is asked
    request = TargetImages(project, recipe).in_job(request, submit=submit)
    return render(plan_job(recipe, request))


def interactive_job(project: Project, recipe: Recipe, request: JobRequest) -> str:
    """Return the line that allocates a node with a terminal, and the lines to type there.

    Raises:
        UsageError: the site has no scheduler, cannot run the job, or a value is not valid.
    """
    request = TargetImages(project, recipe).in_job(request, submit=False)
    planned = salloc(recipe, request)
    then = shell_line(recipe, planned.then)
    if planned.edf:
        then = with_edf(planned.edf, edf_name(recipe), then)
    return f"{command_line(planned.allocate)}\n{then}"
