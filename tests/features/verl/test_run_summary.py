"""Which image a summary names."""

from __future__ import annotations

from ci_tasks.agent.records import ContainerState
from ci_tasks.features.verl.run_summary import image_identity
from ci_tasks.records import RunEnvironment, RunRecord


def ran_in(*containers: ContainerState) -> RunRecord:
    return RunRecord("r.01", "verl", "row", "box", "passed", environment=RunEnvironment(containers=containers))


def test_an_image_is_its_digest_or_its_id_where_it_was_never_pulled() -> None:
    built = ContainerState(image="verl:mine", image_id="sha256:1")
    pulled = ContainerState(image="verlai/verl:latest", image_id="sha256:1", digests=("verlai/verl@sha256:2",))
    assert image_identity(ran_in(pulled)) == "verlai/verl@sha256:2"
    assert image_identity(ran_in(built)) == "sha256:1"
    assert image_identity(ran_in()) == ""
