"""What a run of verl's end-to-end levels showed of a Megatron-Bridge change.

`training_log` reads a log of any size into facts, `settings` verl's printed configuration, `noted` what the probe's
hook wrote; `training_run` has them together. `criteria` holds one training against the guide's criteria, `checkpoints`
against those of level 1, `learning` of level 5; `attribution` says whose fault a failure is. `verdict` judges the run,
`summary_text` puts it into words.
"""
