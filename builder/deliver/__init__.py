"""An image becomes a tag, a process or a job.

In reading order:

===============  ==================================================================================
room             content
===============  ==================================================================================
``project``      the targets and paths of a folder, and what can be done with them
``locking``      recipe to written lock; above build, because source packages are built
``smoke``        what is tested in an image, its runs, grades, comparisons and reports
``publishing``   what moves a tag: test, push, read-back, attachments, signature; pull, verify
``site``         command lines and batch scripts of a site; which image a job runs
``launch``       one call per command that runs an image, on this host or in a job
``pulled``       the record of a pull: the newest image of a target, if it was not built here
``doctor``       what works on this host, and the line to type for what does not
===============  ==================================================================================

This house prints nothing and asks nobody: it reports to a
:class:`~builder.core.progress.Reporter`. It moves no tag to an image whose test has not passed and
whose bytes were not read back. It knows runtimes and schedulers, never a site: sites are data.

- Why not submitit: it starts functions as jobs; builder writes a script that people read, keep and
  change.
- Why not cyclonedx-python-lib: an SBOM is the same bytes each time, so builder writes it; the
  library validates it in the tests.
- Why not sigstore: signatures are made with keys in files, not with identities of a service, and
  read within limits. cryptography has all that they need but the cipher of cosign's encrypted keys.
"""
