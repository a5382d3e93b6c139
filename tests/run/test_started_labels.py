"""`jobs --changed` on a real repository: what is committed since the base, and what is not committed yet."""

from __future__ import annotations

from typing import Any

WORKFLOW = "on: {pull_request: {paths: ['%s']}}\njobs: {%s: {runs-on: x, steps: [run: exit 1]}}\n"


def test_labels_of_all_workflows_by_the_changed_files(person: Any) -> None:
    person.write(".github/workflows/docs.yml", WORKFLOW % ("docs/**", "docs"))
    person.write(".github/workflows/other.yml", WORKFLOW % ("nothing/**", "other"))
    person.write(".github/workflows/broken.yml", "jobs: [")
    person.write(".github/workflows/range.yml", WORKFLOW % ("[z-a]", "range"))
    person.write(".github/workflows/docs.yml~", WORKFLOW % ("**", "backup"))
    person.write(".github/workflows/README.md", "not a workflow")
    person.write(".github/workflows/directory.yml/a", "not a workflow")
    person.git("add", "-A")
    person.git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "workflows")
    person.git("update-ref", "refs/remotes/origin/main", "HEAD")
    person.write("docs/new.md", "not committed")
    said = person.ci_tasks("jobs", "--changed", "--json")
    starts = {entry["label"]: entry["starts"] for entry in said.json}
    assert (starts["docs"], starts["other"]) == ("yes", "no")
    assert starts["ckpt"] == "with label"
    assert {"backup", "-"} & {*starts} == {"-"} and len(said.json) == len(
        starts
    ) + 1  # a template has no labels of its own
    assert "README.md" not in person.ci_tasks("jobs", "--changed", "--rev", "HEAD").out
    shown = person.ci_tasks("jobs", "--changed").out
    assert shown.startswith("1 changed file since origin/main\n")
    assert "paths docs/new.md: none matches nothing/**" in shown and "invalid YAML" in shown
    assert "invalid filter pattern: bad character range z-a" in shown
    assert person.ci_tasks("jobs", "ckpt", "--changed").code == 2
    person.write(
        ".github/workflows/docs.yml",
        "on: {pull_request: {branches: [r/1]}}\njobs: {docs: {runs-on: x, steps: [run: a]}}",
    )
    person.git("update-ref", "refs/remotes/origin/r/1", "HEAD")
    for base, word in (("origin/r/1", "yes"), ("origin/main", "no"), ("HEAD~0", "no")):
        said = person.ci_tasks("jobs", "--changed", "--base", base, "--json")
        assert {entry["label"]: entry["starts"] for entry in said.json}["docs"] == word, base
