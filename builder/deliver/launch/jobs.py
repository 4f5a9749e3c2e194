"""Batch scripts and interactive jobs that run a target's image."""

from __future__ import annotations

import os
from pathlib import Path

from builder.core.errors import UsageError
from builder.deliver.site.job_plan import plan_job, salloc
from builder.deliver.site.lockchecks import job_warnings
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.file import earlier_lock

from .images import TargetImages
from .scripts import check_script


def job_script(images: TargetImages, request: JobRequest, *, submit: bool = False) -> str:
    """Return the batch script of a job.

    Args:
        images: of the target.
        request: the job.
        submit: whether the script will be submitted here.

    Raises:
        UsageError: the site cannot run the job, or has no scheduler to submit it to.
        RunnerError: srun of this machine lacks the plugin that starts the containers.
    """
    recipe = images.recipe
    if submit and recipe.site.slurm is None:
        hint = "write the script with --output FILE and run it on the machine"
        raise UsageError(f"{recipe.site_title} has no scheduler to submit jobs to", hint)
    _check_command(images, request)
    # What is wrong is reported before the registry is asked.
    srun = plan_job(recipe, request).container.srun
    if submit and srun:
        srun.require_plugin(os.environ)
    if not request.image and (lock := earlier_lock(recipe.lock_path)):
        for warning in job_warnings(recipe, lock, request):
            images.project.work.reporter.warn(warning)
    return render(plan_job(recipe, images.in_job(request, submit=submit)))


def _check_command(images: TargetImages, request: JobRequest) -> None:
    """Raise UsageError if a job has no command; warn if its script is not in this folder."""
    recipe, reporter = images.recipe, images.project.work.reporter
    has_command = request.command or request.image or request.jupyter
    if not has_command and "cmd" not in recipe.model_fields_set:
        hint = f"builder job {recipe.name} -- python train.py; or write a cmd: into {recipe.source}"
        raise UsageError(f"the job has no command, and {recipe.name} has no cmd:", hint)
    try:
        check_script(request.command, Path.cwd(), images.project.root)
    except UsageError as e:
        if e.hint:  # else this folder has no scripts: the site has them
            reporter.warn(f"{e.message}; {e.hint}")


def interactive_job(images: TargetImages, request: JobRequest) -> str:
    """Return the line that allocates a node with a terminal, and the lines to type there.

    Raises:
        UsageError: the site has no scheduler, cannot run the job, or a value is not valid.
    """
    return "\n".join(salloc(images.recipe, images.in_job(request, submit=False, interactive=True)))
