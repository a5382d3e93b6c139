"""The checkout's CI jobs as sessions (tag `ci`), and our own development sessions (tag `dev`)."""

import nox

from ci_tasks import sessions

nox.options.default_venv_backend = "venv"
sessions.register()


@nox.session(tags=["dev"])
def tests(session: nox.Session) -> None:
    """our own tests, with coverage"""
    session.install("-e", ".[dev]")
    coverage = ["--cov", "--cov-report=term:skip-covered"]
    session.run("pytest", "-n", "auto", "--dist", "worksteal", *coverage, *session.posargs)


@nox.session(tags=["dev"])
def lint(session: nox.Session) -> None:
    """ruff: rules and format"""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(tags=["dev"])
def typecheck(session: nox.Session) -> None:
    """mypy, strict"""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session(tags=["dev"])
def docs(session: nox.Session) -> None:
    """the pages of docs/ as a site in site/; a link or an anchor that leads nowhere fails"""
    session.install("-e", ".[docs]")
    session.run("sphinx-build", "-nW", "--keep-going", "-q", "docs", "site", *session.posargs)


@nox.session(tags=["dev"], default=False)
def bench(session: nox.Session) -> None:
    """side-by-side measurements, one JSON line a figure"""
    session.install("-e", ".")
    session.run("python", "bench/startup.py", *session.posargs)
