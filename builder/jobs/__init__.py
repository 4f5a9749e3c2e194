"""Batch scripts of a site: what a job is (:mod:`builder.jobs.model`), written as a script, handed to Slurm."""

from __future__ import annotations

from builder.jobs.model import Job, JobRequest, RayJob, plan_job, salloc
from builder.jobs.render import render
from builder.jobs.submit import submit

__all__ = ["Job", "JobRequest", "RayJob", "plan_job", "render", "salloc", "submit"]
