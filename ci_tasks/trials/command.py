"""The commands `reproduce`, `compare` and `bisect`."""

from __future__ import annotations

from ci_tasks.cli.shared import perform, with_given
from ci_tasks.errors import UsageError
from ci_tasks.trials.options import BisectOptions, CompareOptions, ReproduceOptions


def reproduce(options: ReproduceOptions) -> int:
    """
    ci-tasks reproduce --url https://github.com/OWNER/REPO/actions/runs/1/job/2 --host h100a
    gh run view 123 --log | ci-tasks reproduce --log - --host h100a
    ci-tasks reproduce --log failed.log --host h100a --on-my-tree      is it fixed?
    """
    from ci_tasks.logs import job_log
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.trials.reproduce import reproduce

    if not (options.log or options.url):
        hint = "`ci-tasks reproduce --help` has examples"
        raise UsageError("reproduce needs --log FILE, --log - or --url URL", hint=hint)
    config = with_given(open_config(options.repo), options)
    config.host(options.host)  # before anything is downloaded
    if options.url:
        (log,) = job_log.from_url(options.url, only_one=True)
    else:
        (log,) = job_log.from_file(options.log or "-", options.job, only_one=True)
    return perform(lambda events: reproduce(log, config, options, events), options)


def compare(options: CompareOptions) -> int:
    """
    ci-tasks compare ckpt --only async-save --host h100a               is the failure yours?
    ci-tasks compare ckpt --host h100a                                 a table of all rows
    ci-tasks compare ckpt --only async-save --base HEAD~3 --host h100a --max-runs 40
    """
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.trials.compare import compare

    config = with_given(open_config(options.repo), options)
    return perform(lambda events: compare(options, config, events), options)


def bisect(options: BisectOptions) -> int:
    """
    ci-tasks bisect cpu-unittest --only rewards --good v1.2 --bad main
    ci-tasks bisect ckpt --only async-save --good HEAD~64 --host h100a
    ci-tasks bisect ckpt --only async-save --axis image --images images.txt --host h100a     one image in each line
    ci-tasks bisect ckpt --only async-save --axis submodule:3rdparty/Megatron-LM --good v0.5 --host h100a
    ci-tasks bisect ckpt --only async-save --axis overlay:sglang --with sglang=~/sglang --good v0.5.3 --host h100a
    """
    from ci_tasks.run.hosts_files import open_config
    from ci_tasks.trials.bisect import bisect

    _check_axis(options.axis, options)
    return perform(lambda events: bisect(options, with_given(open_config(options.repo), options), events), options)


def _check_axis(axis: str, options: BisectOptions) -> None:
    """Whether the options have what the axis needs, and nothing that is for another one. Raises UsageError."""
    if axis not in ("commit", "image") and not axis.startswith(("overlay:", "submodule:")):
        hint = "valid: commit, image, submodule:PATH, overlay:NAME"
        raise UsageError(f"invalid value {axis!r} for --axis", hint=hint)
    needed = "images" if axis == "image" else "good"
    if not getattr(options, needed):
        raise UsageError(f"bisect needs --{needed}", hint="`ci-tasks bisect --help` has examples")
    if other := "images" if options.images and axis != "image" else "rev" if options.rev and axis == "commit" else "":
        raise UsageError(f"--{other} and --axis {axis} cannot be combined", hint="leave one of them away")
