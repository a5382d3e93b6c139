"""The verl end-to-end levels of a Megatron-Bridge change."""

from ci_tasks.registry import Command, Feature, Session

FEATURE = Feature(
    name="verl",
    run_summary="ci_tasks.features.verl.level_run:attached",
    run_report="ci_tasks.features.verl.level_run:criteria",
    suite="ci_tasks.features.verl.suite:SUITE",
    metric_format="ci_tasks.features.verl.suite:FORMAT",
    commands=(
        Command(
            "verl",
            "Megatron-Bridge",
            "Validate a Megatron-Bridge change through verl, level by level.",
            "ci_tasks.features.verl.command:verl",
            json=(
                "ci_tasks.features.verl.judge.records:Summary",
                "ci_tasks.records:PlanEntry[]",
                "ci_tasks.records:BatchResult",
                "ci_tasks.features.verl.level_run:LevelComparison",
            ),
            exit_codes="ci_tasks.features.verl.judge.records:RESULT_CODES",
        ),
    ),
    nox_sessions=tuple(
        Session(f"verl(level={level})", f"verl end-to-end, level {level}", ("verl", "--level", str(level)))
        for level in range(6)
    ),
)
