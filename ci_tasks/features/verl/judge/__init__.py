"""What a run of verl's end-to-end levels showed of a Megatron-Bridge change, from its log alone.

`log_patterns` knows single lines, `resolved_settings` verl's printed configuration; `read_log` reads a log of any size
into `log_records`. `failure_stages` says where a training failed and whose fault that is, `learning_signal` whether
metrics show one, `bridge_imports` which Bridge was used. `verdict_of_training` holds one training against its criteria,
`verdict_of_run` all of them together, `summary_text` puts it into words.
"""
