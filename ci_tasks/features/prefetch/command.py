"""The command `prefetch`."""

from __future__ import annotations

import sys
from dataclasses import replace

from ci_tasks.cli.given_options import with_given
from ci_tasks.features.prefetch.options import PrefetchOptions


def prefetch(options: PrefetchOptions) -> int:
    """
    ci-tasks prefetch megatron --host h100a --dry-run    what is there, what is missing, and what is gated
    ci-tasks prefetch megatron --host h100a              downloads it; after ^C the same command goes on
    ci-tasks prefetch ckpt --only async --json

    To find what they download, the tests are only read. With --record they are executed, with imports and programs
    replaced by stubs, in a sandbox without network.

    It runs `hf download` (or huggingface-cli) in the image of the rows. A host without containers uses the one on its
    PATH, or installs huggingface_hub into a venv in its workspace.

    Exit code 0 if nothing keeps a run from its files. 125 if a repository is gated or cannot be found, the hub does
    not answer, or the disk is too small: a run would be blocked.
    """
    from ci_tasks.features.prefetch.download import ProgressLine
    from ci_tasks.features.prefetch.prefetch import prefetch_label
    from ci_tasks.hosts.executors import open_executor
    from ci_tasks.run.checkout_source import open_source
    from ci_tasks.run.hosts_files import open_config

    config = with_given(open_config(options.repo), options)
    source = open_source(options.repo, options.rev, options.workflow, config.given)
    print(source.headline, file=sys.stderr)
    options = replace(options, label=source.label_of(options.label))
    progress = ProgressLine(sys.stderr)
    try:
        return prefetch_label(source, config, options, progress, open_executor)
    finally:
        progress.close()
