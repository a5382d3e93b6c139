"""Models and datasets on the host before a run holds its GPUs."""

from ci_tasks.registry import Command, Feature

FEATURE = Feature(
    name="prefetch",
    needs=("recorder", "suites"),
    commands=(
        Command(
            "prefetch",
            "Before a run",
            "Download the models and datasets of a label's tests to the host.",
            "ci_tasks.features.prefetch.command:prefetch",
            json=("ci_tasks.features.prefetch.report:PrefetchReport",),
        ),
    ),
    before_rows="ci_tasks.features.prefetch.prefetch:before_rows",
)
