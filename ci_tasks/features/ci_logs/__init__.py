"""GitHub's logs of a job, from a file or a URL: which job, row and inputs they are of."""

from ci_tasks.registry import Feature

FEATURE = Feature("ci_logs", ci_log_reader="ci_tasks.features.ci_logs.job_log:open_ci_log")
