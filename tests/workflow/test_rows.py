"""The rows that CI would run, evaluated: names, environment, image, runner, trigger, time limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ci_tasks.errors import WorkflowError
from ci_tasks.given_values import GivenValues
from ci_tasks.workflow import rows, secrets
from ci_tasks.workflow.context import EventContext
from ci_tasks.workflow.model import JobRow, Row, Workflow
from ci_tasks.workflow.reader import read
from tests.parts.entries import describe

LABELS = "github.event.pull_request.labels.*.name"


def workflow(job: str = "", *, top: str = "", others: str = "", steps: str = "- run: x") -> Workflow:
    """A workflow with the job `a`; `job` and `others` are YAML, indented as they stand in the file."""
    runner = "" if "runs-on" in job else "    runs-on: gpu\n"
    return read(f"on: pull_request\n{top}jobs:\n  a:\n{runner}{job}    steps:\n      {steps}\n{others}", "w.yml")


def listed(parsed: Workflow, event: EventContext = EventContext(), job: str = "a") -> list[Row]:
    return rows.rows(parsed, parsed.jobs[job], event, describe)


def only(parsed: Workflow, event: EventContext = EventContext()) -> Row:
    (row,) = listed(parsed, event)
    return row


def info(*entries: str) -> str:
    return "    strategy:\n      matrix:\n        info:\n" + "".join(f"          - {entry}\n" for entry in entries)


def test_a_row_has_everything_that_ci_says_of_it() -> None:
    parsed = workflow(
        f"    if: contains({LABELS}, 'run-ci-a')\n    timeout-minutes: 90\n"
        + "    env: {N: '${{ matrix.info.num_gpus }}'}\n"
        + info("{test_file: test_ckpt.py, test_args: --async-save, num_gpus: 8}", "{test_file: test_ppo.py}"),
        steps="- run: docker run --rm img:1 bash",
    )
    assert listed(parsed)[0] == Row(
        label="a", job="a", trigger="run-ci-a", row="ckpt[async-save]", test="tests/test_ckpt.py",
        args="--async-save", gpus=8, image="img:1", env={"N": "8"}, runner="self-hosted", timeout_minutes=90.0,
        matrix={"info": {"test_file": "test_ckpt.py", "test_args": "--async-save", "num_gpus": 8}}, index=0, total=2,
    )  # fmt: skip


NAMES: list[tuple[list[str], list[str]]] = [
    # The file's stem less `test_`, then the arguments as one word.
    (["{test_file: test_a.py}", "{test_file: dir/test_b.py}", "{test_file: run.py}"], ["a", "b", "run"]),
    (
        ["{test_file: t.py, test_args: --save-optimizer gpu --load=cpu}", "{test_file: t.py, test_args: '--lr 1e-6'}"],
        ["t[save-optimizer-gpu-load-cpu]", "t[lr-1e-6]"],
    ),
    (["{test_file: t.py, test_args: '--path /a/b --n \"x y\"'}"], ["t[path-_a_b-n-_x-y_]"]),
    (["{test_file: t.py, test_args: '--'}"], ["t"]),
    # A name picks one row: the second of one name is numbered, past names that are taken.
    (["{test_file: t.py}"] * 3, ["t", "t#2", "t#3"]),
    (["{test_file: t.py}", "{test_file: t.py}", "{test_file: 't#2.py'}"], ["t", "t#3", "t#2"]),
    (["{test_file: t.py, test_args: --x}", "{test_file: t.py, test_args: x}"], ["t[x]", "t[x]#2"]),
    # Without a test file the values themselves, as GitHub shows them.
    (["{os: linux, on: true, v: 3.10, none: null, deep: {er: [1, 2]}}"], ["a[linux-true-3.1-1-2]"]),
]


@pytest.mark.parametrize(("entries", "names"), NAMES)
def test_row_names_are_readable_and_unique(entries: list[str], names: list[str]) -> None:
    parsed = workflow(info(*entries))
    assert [row.row for row in listed(parsed)] == names
    assert rows.names(parsed, parsed.jobs["a"], EventContext(), describe) == names


NEEDED = f"  b:\n    if: contains({LABELS}, 'run-ci-b')\n    uses: ./x.yml\n  c: {{uses: ./x.yml, needs: b}}\n"


@pytest.mark.parametrize(
    ("job", "trigger"),
    [
        # None: the job always runs.
        ("", None),
        ("    if: github.event_name == 'push'\n", None),
        # Its own label, alone or beside other tests; the first of several.
        (f"    if: contains({LABELS}, 'run-ci-a')\n", "run-ci-a"),
        (f"    if: ${{{{ github.event_name == 'x' || contains({LABELS}, 'run-ci-a') }}}}\n", "run-ci-a"),
        (f"    if: contains({LABELS}, 'x') || contains({LABELS}, 'y')\n", "x"),
        # A label that forbids the job does not start it.
        (f"    if: \"!contains({LABELS}, 'skip')\"\n", None),
        # That of a job it needs, directly or through another; its own outweighs it.
        ("    needs: b\n", "run-ci-b"),
        ("    needs: [c]\n    if: needs.c.outputs.x == 'true'\n", "run-ci-b"),
        (f"    needs: b\n    if: contains({LABELS}, 'run-ci-a')\n", "run-ci-a"),
    ],
)
def test_the_trigger_is_the_label_that_starts_the_job(job: str, trigger: str | None) -> None:
    assert only(workflow(job, others=NEEDED)).trigger == trigger


@pytest.mark.parametrize(
    ("runs_on", "runner"),
    [
        ("ubuntu-latest", "github-hosted"),
        ("windows-2022", "github-hosted"),
        ("macos-14-xlarge", "github-hosted"),
        ("self-hosted", "self-hosted"),
        ("[ubuntu-latest]", "github-hosted"),
        # A self-hosted machine may carry a label that looks like GitHub's.
        ("[self-hosted, ubuntu-22.04]", "self-hosted"),
        # Groups: only their labels say something.
        ("{group: ubuntu-runners}", "self-hosted"),
        ("{group: big, labels: ubuntu-22.04-16core}", "github-hosted"),
        # Expressions, also within lists.
        ("${{ matrix.os || 'ubuntu-latest' }}", "github-hosted"),
        ("'${{ fromJson(''[\"ubuntu-latest\"]'') }}'", "github-hosted"),
        ("[\"${{ needs.setup.outputs.runner || 'L20x8' }}\"]", "self-hosted"),
        # What only a caller or another job says is no machine of GitHub's that we know of.
        ("${{ fromJson(inputs.runner) }}", "self-hosted"),
        ("${{ vars.RUNNER }}", "self-hosted"),
    ],
)
def test_labels_say_whose_machine_it_is(runs_on: str, runner: str) -> None:
    parsed = workflow(f"    runs-on: {runs_on}\n    needs: b\n", others="  b: {uses: ./x.yml}\n")
    assert only(parsed).runner == runner


@pytest.mark.parametrize(
    ("minutes", "limit"),
    [
        ("0.5", 0.5),
        ("${{ matrix.info.minutes }}", 30.0),
        ("${{ matrix.info.nothing || 60 }}", 60.0),
        ("${{ fromJson(inputs.minutes) }}", None),
        ("", None),
    ],
)
def test_the_time_limit_may_be_an_expression(minutes: str, limit: float | None) -> None:
    parsed = workflow(f"    timeout-minutes: {minutes}\n" + info("{minutes: 30}"))
    assert only(parsed).timeout_minutes == limit


def test_the_jobs_environment_outweighs_the_workflows_and_neither_sees_the_other() -> None:
    parsed = workflow(
        "    env:\n      B: job-${{ env.A }}\n      C: ${{ matrix.info.n || '0' }}\n      D: 1.0\n      E:\n"
        + info("{n: 2}"),
        top="env: {A: top, B: top}\n",
    )
    assert only(parsed).env == {"A": "top", "B": "job-", "C": "2", "D": "1", "E": ""}


IMAGES: list[tuple[str, str, str | None]] = [
    ("", "- run: make", None),
    # The job's container, whose image may depend on the row.
    ("    container: img:1\n", "- run: docker run other", "img:1"),
    ("    container: {image: 'img:${{ matrix.info.tag }}'}\n", "- run: x", "img:t"),
    ('    container: "${{ fromJson(\'{\\"image\\": \\"img:2\\"}\') }}"\n', "- run: x", "img:2"),
    ("    container: ${{ matrix.info.nothing }}\n", "- run: x", None),
    # The first `docker run` of its steps.
    ("", "- run: docker run --rm img:${{ matrix.info.tag }} x", "img:t"),
    ("", "- run: docker info\n      - run: docker run img:2", "img:2"),
    ("    env: {IMAGE: 'img:3'}\n", "- run: docker run $IMAGE", "img:3"),
    ("    env: {IMAGE: 'img:3'}\n", "- {run: 'docker run $IMAGE', env: {IMAGE: '${{ env.IMAGE }}-x'}}", "img:3-x"),
    # A step whose `if` does not hold for the row, or holds as far as can be known.
    ("", "- {run: docker run a, if: matrix.info.tag == 'u'}\n      - run: docker run b", "b"),
    ("", "- {run: docker run a, if: steps.x.outputs.y == '1'}\n      - run: docker run b", "a"),
    # Known only while it runs.
    ("", "- run: docker run $UNKNOWN", None),
    ("", "- run: docker run ${{ steps.x.outputs.image }}/x", None),
    # Known on GitHub alone.
    ("", "- run: docker run ${{ vars.REGISTRY }}/x:${{ vars.TAG }}", "<vars.REGISTRY>/x:<vars.TAG>"),
    ("    container: '${{ vars.IMAGE }}'\n", "- run: x", "<vars.IMAGE>"),
    ("    env: {I: '${{ vars.IMAGE }}'}\n", "- run: docker run $I", "<vars.IMAGE>"),
    ("", "- {run: docker run a, if: vars.X == '1'}\n      - run: docker run b", "a"),
]


@pytest.mark.parametrize(("job", "steps", "image"), IMAGES)
def test_the_image_is_the_containers_or_the_first_docker_runs(job: str, steps: str, image: str | None) -> None:
    assert only(workflow(job + info("{tag: t}"), steps=steps)).image == image


GPUS: list[tuple[str, str, int | None]] = [
    # The matrix is nearest to the test.
    ("    runs-on: L20x8\n" + info("{test_file: t.py, num_gpus: 2}"), "gpu_lock_exec.py --count 4 -- x", 2),
    ("    runs-on: L20x8\n" + info("{test_file: t.py, num_gpus: 0}"), "docker run --gpus all img", 0),
    # Then CI's lock script, in a step that runs.
    ("    runs-on: L20x8\n", "gpu_lock_exec.py --count 4 -- x", 4),
    ("    runs-on: L20x8\n", "docker run --gpus 2 img gpu_lock_exec.py --count ${{ 1 }} -- x", 1),
    # Then docker's flag, where it says a number.
    ("    runs-on: L20x8\n", "docker run --gpus 2 img", 2),
    ("    runs-on: L20x8\n", "docker run --gpus '\"device=2,3\"' img", 2),
    ("    runs-on: L20x8\n", "docker run --gpus all img", 8),
    ("    runs-on: box\n", "docker run --gpus all img", None),
    ("    container: {image: i, options: --gpus 4 --ipc=host}\n", "x", 4),
    ("    container: {image: i, options: '--gpus=all --user root -e A=1'}\n", "x", None),
    ('    container: {image: i, options: "--gpus \' 4"}\n', "x", None),
    # Then the runner, by the text that an expression falls back to.
    ("    runs-on: [self-hosted, linux, 4-gpu]\n", "x", 4),
    ("    runs-on: ['${{ needs.b.outputs.runner || ''L20x8'' }}']\n    needs: b\n", "x", 8),
    ("    runs-on: ${{ needs.b.outputs.prefix }}-gpu-x2\n    needs: b\n", "x", 2),
    ("    runs-on: ${{ 'gpu-x2' || 'L20x8' }}\n", "x", 2),
    # A machine without GPUs, unless the job wants some.
    ("    runs-on: ubuntu-latest\n", "x", 0),
    ("    runs-on: linux-amd64-cpu16\n", "x", 0),
    ("    runs-on: ubuntu-latest\n", "docker run --gpus all img", None),
    ("    runs-on: ubuntu-22.04-gpu-t4\n", "x", None),
    # Any other may have some.
    ("    runs-on: [self-hosted, linux, x64]\n", "x", None),
    ("    runs-on: ${{ vars.RUNNER }}\n", "x", None),
    ("    runs-on: {group: gpu-8}\n", "x", None),
    # What is no GPU of NVIDIA's is none of its number.
    ("    runs-on: linux-mi325-8gpu\n", "x", None),
]


@pytest.mark.parametrize(("job", "script", "count"), GPUS)
@pytest.mark.parametrize("given", [None, 0, 5])
def test_a_row_has_the_gpus_that_the_workflow_says_and_else_those_that_a_person_gives(
    job: str, script: str, count: int | None, given: int | None
) -> None:
    steps = f"- run: |\n          {script}\n      - {{run: gpu_lock_exec.py --count 7 -- x, if: false}}"
    row = only(workflow(job, steps=steps, others="  b: {uses: ./x.yml}\n"), EventContext(given=GivenValues(gpus=given)))
    takes_given = count is None and not row.refused
    assert (row.gpus, row.gpus_given) == (given if takes_given else count, takes_given and given is not None)


def test_secrets_are_shown_by_name_and_never_by_value() -> None:
    parsed = workflow(
        "    env: {T: 'x-${{ secrets.TOKEN }}', U: '${{ secrets.UNSET }}'}\n",
        steps="- run: docker run ${{ secrets.REGISTRY }}/img:1",
    )
    row = only(parsed, EventContext(secrets=("TOKEN", "REGISTRY")))
    assert row.env == {"T": f"x-{secrets.mark('TOKEN')}", "U": ""}
    assert secrets.shown(row.env["T"]) == "x-<secret TOKEN>"
    assert row.image == "<secret REGISTRY>/img:1"


# The matrix of one job from the output of another.
DETECT = "  detect: {uses: ./x.yml}\n"
DYNAMIC = "${{ fromJson(needs.detect.outputs.m) }}"
WAITING = [
    (f"matrix: {DYNAMIC}", '{"info": [{"n": 1}]}'),
    (f"matrix: {{info: '{DYNAMIC}'}}", '[{"n": 1}]'),
    (f"matrix: {{os: [x], include: '{DYNAMIC}'}}", '[{"n": 1}]'),
    (f"matrix: {{include: ['{DYNAMIC}']}}", '{"n": 1}'),
]


@pytest.mark.parametrize(("matrix", "output"), WAITING)
def test_a_matrix_is_dynamic_until_the_output_is_known(matrix: str, output: str) -> None:
    parsed = workflow(
        f"    runs-on: [ubuntu-latest]\n    needs: detect\n    strategy:\n      {matrix}\n", others=DETECT
    )
    job = parsed.jobs["a"]
    assert rows.missing_outputs(job, EventContext()) == ["detect"]
    row = only(parsed)
    assert (row.row, row.dynamic, row.test, row.gpus, row.runner) == ("a", DYNAMIC, None, None, "github-hosted")
    assert JobRow.of(row).dynamic == DYNAMIC
    assert rows.names(parsed, job, EventContext(), describe) == []

    situation = EventContext(outputs={"detect": {"m": output}})
    assert rows.missing_outputs(job, situation) == []
    row = only(parsed, situation)
    assert "dynamic" not in JobRow.of(row).public()
    assert 1 in (row.matrix.get("n"), row.matrix.get("info", {}).get("n"))


def test_an_output_without_rows_gives_none() -> None:
    parsed = workflow(
        "    needs: detect\n    strategy: {matrix: '${{ fromJson(needs.detect.outputs.m) }}'}\n", others=DETECT
    )
    assert listed(parsed, EventContext(outputs={"detect": {"m": '{"info": []}'}})) == []


def test_a_matrix_of_a_callers_inputs_is_dynamic_and_waits_for_no_job() -> None:
    parsed = workflow("    strategy: {matrix: '${{ fromJson(inputs.m) }}'}\n")
    assert only(parsed).dynamic == "${{ fromJson(inputs.m) }}"
    assert rows.missing_outputs(parsed.jobs["a"], EventContext()) == []
    parsed = workflow("    strategy: {matrix: {python: '${{ inputs.versions }}'}}\n")
    assert only(parsed).dynamic == "${{ inputs.versions }}"


def test_a_strategy_may_be_an_expression() -> None:
    parsed = workflow('    strategy: ${{ fromJson(\'{"matrix":{"n":[1,2]}}\') }}\n')
    assert [row.matrix for row in listed(parsed)] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("entry", "value"),
    [("true", "true"), ("3.10", "3.1"), ("1.0", "1"), ("'3.10'", "3.10"), ("null", ""), ("0x10", "16")],
)
def test_values_of_a_matrix_reach_the_environment_as_github_writes_them(entry: str, value: str) -> None:
    parsed = workflow(f"    strategy: {{matrix: {{v: [{entry}]}}}}\n    env: {{V: '${{{{ matrix.v }}}}'}}\n")
    assert only(parsed).env == {"V": value}


def test_a_rows_resolver_sees_its_environment_and_matrix() -> None:
    parsed = workflow("    env: {A: '1'}\n" + info("{n: 2}"))
    row = only(parsed)
    resolve = rows.row_resolver(parsed, parsed.jobs["a"], row, EventContext())
    assert resolve.text("${{ env.A }}-${{ matrix.info.n }}-${{ strategy.job-total }}") == "1-2-1"


def test_a_rows_environment_can_be_evaluated_again_in_another_situation() -> None:
    parsed = workflow("    env: {W: '${{ github.workspace }}'}\n", top="env: {S: '${{ github.sha }}'}\n")
    row = only(parsed)
    assert rows.environment(parsed, parsed.jobs["a"], row, EventContext(workspace="/w", sha="abc")) == {
        "S": "abc",
        "W": "/w",
    }


# Whatever cannot be read is an error wherever it stands, also where nothing evaluates it yet.
BROKEN: list[tuple[Mapping[str, str], str]] = [
    ({"job": "    env:\n      A: 1\n      B: ${{ bogus() }}\n"}, "w.yml:7: job a: unknown function 'bogus'"),
    ({"top": "env: {A: '${{ bogus() }}'}\n"}, "w.yml:2: job a: unknown function 'bogus'"),
    ({"job": "    if: bogus()\n"}, "w.yml:5: job a: unknown function 'bogus'"),
    ({"job": "    if: |\n      always() &&\n      bogus()\n"}, "w.yml:7: job a: unknown function 'bogus'"),
    ({"job": "    name: ${{ bogus() }}\n"}, "w.yml:5: job a: unknown function 'bogus'"),
    ({"job": "    runs-on: [x, '${{ bogus() }}']\n"}, "w.yml:4: job a: unknown function 'bogus'"),
    ({"job": "    timeout-minutes: ${{ bogus() }}\n"}, "w.yml:5: job a: unknown function 'bogus'"),
    ({"job": "    outputs:\n      a: ${{ bogus() }}\n"}, "w.yml:6: job a: unknown function 'bogus'"),
    ({"job": "    container:\n      image: x\n      env:\n        A: ${{ bogus() }}\n"}, "w.yml:8: job a: unknown"),
    ({"job": info("{n: 1}", "{n: '${{ bogus() }}'}")}, "w.yml:9: job a: unknown function 'bogus'"),
    (
        {"steps": "- name: S\n        run: |\n          one\n          two ${{ bogus() }}\n          three"},
        "w.yml:9: job a, step 'S': unknown function 'bogus'",
    ),
    ({"steps": "- name: S\n        run: x\n        if: bogus()"}, "w.yml:8: job a, step 'S': unknown"),
    ({"steps": "- name: S\n        run: x\n        env:\n          A: ${{ bogus() }}"}, "w.yml:9: job a, step 'S'"),
    ({"steps": "- name: S\n        uses: x\n        with:\n          a: ${{ bogus() }}"}, "w.yml:9: job a, step"),
    ({"steps": "- name: S\n        run: x\n        timeout-minutes: ${{ bogus() }}"}, "w.yml:8: job a, step"),
    ({"steps": "- run: x\n      - name: S ${{ bogus() }}\n        run: x"}, "w.yml:7: job a, step 'S ${{"),
    # A dynamic job is read too.
    (
        {"job": "    strategy: {matrix: '${{ fromJson(inputs.m) }}'}\n    env: {A: '${{ bogus() }}'}\n"},
        "w.yml:6: job a: unknown function 'bogus'",
    ),
    # What can be read and not evaluated.
    ({"job": "    env:\n      A: ${{ fromJson('{') }}\n"}, "w.yml:6: job a: fromJSON: not JSON"),
    ({"job": "    env:\n      A: ${{ hashFiles('x') }}\n"}, "w.yml:6: job a: hashFiles needs the files"),
    ({"job": "    timeout-minutes: soon\n"}, "w.yml:5: job a: timeout-minutes is a number, not 'soon'"),
    ({"job": "    strategy:\n      matrix: {a: word}\n"}, "w.yml:6: job a: matrix.a is a list, not str 'word'"),
    ({"job": "    strategy:\n      matrix: ${{ fromJson('[1]') }}\n"}, "w.yml:6: job a: a matrix is a mapping"),
]


@pytest.mark.parametrize(("parts", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_an_error_names_file_line_job_and_step(parts: Mapping[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        listed(workflow(**parts))
    assert str(caught.value).startswith(message)
    assert caught.value.text.strip()


def test_an_error_in_a_rendered_template_says_that_the_line_is_of_the_result() -> None:
    text = "on: push\njobs:\n  a:\n    runs-on: x\n    env: {A: '${{ bogus() }}'}\n    steps: [{run: x}]\n"
    with pytest.raises(WorkflowError, match=r"^w\.yml\.j2 \(rendered\):5: job a: "):
        listed(read(text, "w.yml.j2", rendered=True))
