"""What a run of verl's end-to-end levels showed of a Megatron-Bridge change, from its log alone.

`lines` knows single lines, `settings` verl's printed configuration; `collect` reads a log of any size into `facts`.
`blame` says where a training failed and whose fault that is, `learning` whether metrics show a learning signal,
`imports` which Bridge was used. `training` holds one training against its criteria, `criteria` all of them together,
`wording` says it.
"""

from ci_tasks.judge.verl.collect import metrics_of, read_run
from ci_tasks.judge.verl.criteria import judge
from ci_tasks.judge.verl.facts import RunFacts, TrainingFacts
from ci_tasks.judge.verl.training import RunEnd

__all__ = ["RunEnd", "RunFacts", "TrainingFacts", "judge", "metrics_of", "read_run"]
