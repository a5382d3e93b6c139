"""What a run of verl's end-to-end levels showed of a Megatron-Bridge change: from what the probe's hook noted, and its
log.

`hook_records` has the hook's records, `hooked_training` what they say of a training, `process_evidence` which Bridge
and Megatron-LM its processes imported. `log_patterns` knows single lines, `resolved_settings` verl's printed
configuration; `read_log` reads a log of any size into `log_records`. `failure_stages` says where a training failed and
whose fault that is, `requested_settings` what was asked for. The criteria are in `setting_criteria`, `model_criteria`,
`training_criteria` and `learning_signal`; `bridge_imports` judges the preflight's imports. `verdict_of_training` holds
one training against its criteria, `verdict_of_run` all of them together, `summary_text` puts it into words.
"""
