"""The command `mcp`."""

from __future__ import annotations

from ci_tasks.agent.quick_dataclass import dataclass
from ci_tasks.cli.options import HOST, REPO, repeatable, switch
from ci_tasks.errors import UsageError
from ci_tasks.resources import user_path


@dataclass(frozen=True)
class McpOptions:
    repo: str | None = REPO.field(help=f"{REPO.help}; the only one that the assistant reaches")
    host: str = HOST.field(help="hosts of hosts.yaml that the assistant may name, with commas", default="local")
    logs: tuple[str, ...] = repeatable("a directory with logs that the assistant may read", "DIR").field()
    allow_run: bool = switch("also offer the tools that run tests: run, wait, reproduce").field()


def mcp(options: McpOptions) -> int:
    """
    ci-tasks mcp --repo ~/slime                        read-only: jobs, plan, runs, triage, report
    ci-tasks mcp --repo ~/slime --allow-run --host sim

    An assistant starts this server and talks to it on standard input and output. It needs the extra `mcp`: in
    a clone of ci-tasks, `pip install -e '.[mcp]'`.
    """
    from ci_tasks.results import store
    from ci_tasks.run.checkout_source import find_checkout
    from ci_tasks.run.hosts_files import open_config

    try:
        from ci_tasks.features.mcp.tools import Tools, serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        hint = "in a clone of ci-tasks: `pip install -e '.[mcp]'`, or `uv tool install '.[mcp]'`"
        raise UsageError("the MCP SDK is not installed", hint=hint) from None
    checkout, _ = find_checkout(options.repo)
    hosts = tuple(spec.name for spec in open_config(str(checkout)).select_hosts(options.host))
    logs = [user_path(directory) for directory in options.logs]
    serve(Tools(checkout, hosts, [checkout, store.home() / "runs", *logs]), allow_run=options.allow_run)
    return 0
