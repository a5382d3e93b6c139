"""The command `prefetch`."""

from __future__ import annotations

import sys
from functools import partial

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import BASE, HOST, JSON, LABEL, ONLY, switch
from ci_tasks.cli.shared import CheckoutOptions, GivenOptions, open_checkout, print_result


@dataclass(frozen=True)
class PrefetchOptions(GivenOptions, CheckoutOptions):
    label: str = LABEL.field()
    host: str = HOST.field(default="local", commas=False)
    only: str | None = ONLY.field()
    dry_run: bool = switch("list present and missing files, and download nothing").field()
    record: bool = switch("execute the tests under stubs, in a sandbox, which finds more than their source").field()
    json: bool = JSON.field()
    base: str | None = BASE.field()


def prefetch(options: PrefetchOptions) -> int:
    """
    ci-tasks prefetch megatron --host h100a --dry-run    lists present, missing and gated files
    ci-tasks prefetch megatron --host h100a              downloads it; after ^C the same command continues
    ci-tasks prefetch ckpt --only async --json

    To find what they download, the tests are only read. With --record they are executed, with imports and programs
    replaced by stubs, in a sandbox without network.

    It runs `hf download` in the image of the rows; a host without containers needs `hf` on its PATH.

    Exit code 0 if nothing keeps a run from its files. 125 if a repository is gated or cannot be found, the hub does
    not answer, or the disk is too small: a run would be blocked.
    """
    from ci_tasks.errors import EXIT_BLOCKED
    from ci_tasks.features.prefetch.prefetch import prefetch_label, text
    from ci_tasks.hosts.executor import open_executor
    from ci_tasks.run.checkout_source import RunRequest
    from ci_tasks.safe_output import terminal_width

    config, source = open_checkout(options)
    say = partial(print, file=sys.stderr, flush=True)
    say(source.headline)
    request = RunRequest(source.label_of(options.label), options.only, options.host, options.base)
    given = (source, config, request, open_executor, say)
    result = prefetch_label(*given, record=options.record, dry_run=options.dry_run)
    print_result(result, lambda: text(result, terminal_width()), as_json=options.json)
    return EXIT_BLOCKED if result.blocked else 0
