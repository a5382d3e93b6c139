"""What a run of verl's end-to-end levels showed of a Megatron-Bridge change, from its log alone.

`lines` knows single lines, `settings` verl's printed configuration; `collect` reads a log of any size into `facts`.
`blame` says where a training failed and whose fault that is, `learning` whether metrics show a learning signal,
`imports` which Bridge was used. `training` holds one training against its criteria, `criteria` all of them together,
`summary_text` says it.
"""
