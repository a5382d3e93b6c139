"""What a row covers, from the source of its test and the row itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci_tasks.features.coverage.facts import RowFacts, facts
from ci_tasks.features.recorder.records import Recording

FILES = {
    "scripts/models/big.sh": "MODEL_ARGS=(\n  --num-layers 4\n  --num-experts 64\n  --multi-latent-attention\n)",
    "scripts/models/small-moe-by-name.sh": "MODEL_ARGS=(--num-layers 4\n --moe-router-dtype fp32)",
}
HEAD = """
import subprocess, tempfile
import slime.utils.external_utils.command_utils as U
MODEL_NAME = "Some-1B"
"""


def nothing(path: str) -> str | None:
    return None


Cover = Callable[..., RowFacts]


@pytest.fixture
def covered(record: Callable[..., Recording]) -> Cover:
    return lambda body: facts(record(HEAD + body), FILES.get)


@pytest.fixture
def trained(record: Callable[..., Recording]) -> Cover:
    """Facts of a test whose one training is a literal call: read, so that many cases take no time."""

    def of(flags: str, model: str = "small", **more: str) -> RowFacts:
        arguments = "".join(f", {name}={value!r}" for name, value in more.items())
        source = f"{HEAD}U.execute_train('--ci-test {flags}', 8, {model!r}{arguments})\n"
        return facts(record(source, static=True), FILES.get)

    return of


@pytest.mark.parametrize(
    ("flags", "layout"),
    [
        ("", "DP"),
        ("--tensor-model-parallel-size 2 --context-parallel-size 2", "TP2 + CP2"),
        ("--pipeline-model-parallel-size 4 --expert-model-parallel-size 8", "PP4 + EP8"),
        ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 1", "DP"),  # the last one counts
    ],
)
def test_a_layout_is_the_sizes_above_one(trained: Cover, flags: str, layout: str) -> None:
    assert trained(flags).layouts == (layout,)


@pytest.mark.parametrize(
    ("flags", "model", "kind"),
    [
        # Flags speak before the model's script, the script before the expert-parallel size, and the name comes last.
        ("--num-experts 8", "small", "MoE"),
        ("", "big", "MLA MoE"),
        ("--expert-model-parallel-size 8", "small", "MoE"),
        ("", "small-moe-by-name", "dense"),
        ("--expert-model-parallel-size 1", "small", "dense"),
    ],
)
def test_dense_or_moe_is_read_from_flags_before_names(trained: Cover, flags: str, model: str, kind: str) -> None:
    assert trained(flags, model).models == (f"Some-1B {kind}",)


FEATURES = {
    "--colocate": ["offload/onload"],
    "--colocate --no-offload-rollout": [],
    "--sglang-speculative-algorithm EAGLE": ["EAGLE speculative decoding"],
    "--sglang-moe-a2a-backend deepep --moe-enable-deepep": ["DeepEP"],
    "--hf-checkpoint /root/models/X-FP8": ["FP8 rollout"],
    "--update-weight-transport disk --update-weight-mode delta": ["delta weight update through disk"],
    "--load /x --save /y": ["checkpoint load", "checkpoint save"],
}


def test_flags_name_what_they_exercise(trained: Cover) -> None:
    assert {flags: list(trained(flags).features) for flags in FEATURES} == FEATURES


CONFIG = """
CONFIG = \"\"\"
sglang:
  - name: actor
    server_groups:
      - {worker_type: prefill, num_gpus: 4, num_gpus_per_engine: 4}
      - {worker_type: decode, num_gpus: 2, num_gpus_per_engine: 2}
      - {worker_type: placeholder, num_gpus: 2}
  - name: ref
    update_weights: false
\"\"\"
f = tempfile.NamedTemporaryFile()
f.write(CONFIG.encode())
f.flush()
U.execute_train(f"--a --sglang-config {f.name} ", 8, None)
"""


def test_a_configuration_that_the_test_writes_is_read_too(covered: Cover) -> None:
    row_facts = covered(CONFIG)
    assert set(row_facts.features) >= {
        *("PD", "--sglang-config", "several SGLang models", "frozen SGLang model", "placeholder group"),
        "heterogeneous engine TP",
    }
    assert row_facts.unknown == ()


def test_a_training_may_be_a_command_of_its_own(covered: Cover) -> None:
    body = 'subprocess.run(["python3", "train.py", *"--num-experts 8 --advantage-estimator gspo --ci-test".split()])\n'
    row_facts = covered(body)
    assert (row_facts.kind, row_facts.algorithms, row_facts.models) == ("e2e", ("GSPO",), ("Some-1B MoE",))


# The training's flags, what follows it → what would be noticed.
NOTICED = [
    ("--ci-test", "", "smoke, `--ci-test`"),
    ("--a", "", "smoke, no `--ci-test`"),
    ("--ci-test", "assert f()", "1 assertion after the run, `--ci-test`"),
    ("--a", "subprocess.assert_close(1, 2)", "1 assertion after the run, no `--ci-test`"),
    ("--ci-test --ci-load-grad-norm x", "", "gradient norms equal those of the first layout, `--ci-test`"),
    (*("--ci-test --ci-disable-kl-checker --enable-mtp-training", ""),
     "only MTP parameters get gradients, `--ci-test` without KL"),
]  # fmt: skip


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("flags", "after", "checks"), NOTICED)
def test_checks_are_described(
    record: Callable[..., Recording], flags: str, after: str, checks: str, static: bool
) -> None:
    source = f"{HEAD}\nassert True\nU.execute_train({flags!r}, 8, None)\n{after}\n"
    assert facts(record(source, static=static), FILES.get).checks == checks


def test_a_file_of_tests_counts_them_and_one_without_an_entry_runs_nothing(record: Callable[..., Recording]) -> None:
    tests = '"""Tests of the thing."""\nimport pytest\ndef test_a(): ...\ndef test_b(): ...\n'
    run = facts(record(f"{tests}if __name__ == '__main__':\n    pytest.main([__file__])\n"), nothing)
    assert (run.kind, run.tests, run.checks) == ("unit", ("test_a", "test_b"), "unit tests")
    assert run.doc == "Tests of the thing."
    idle = facts(record(tests), nothing)
    assert (idle.kind, idle.checks) == ("vacuous", "runs nothing")
