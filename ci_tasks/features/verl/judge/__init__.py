"""What a run of verl's end-to-end levels showed of a Megatron-Bridge change.

`training_log` reads a log of any size into facts, verl's printed settings too; `training_run` has a training with what
was asked of it and what the probe's hook noted. `criteria` holds it against the guide's criteria, `learning` against
level 5's; `attribution` says whose fault a failure is. `verdict` judges the run and puts it into words.
"""
