"""What failed, in one line of a log: the first that matters, its cause, and whether the code or the environment is
at fault.

`rules.yaml` knows what lines mean, `lines` takes off what stands before a line's text, `tracebacks` and `reader` gather
candidates, `choose` picks one, `signature` says which failure it is; `analysis` adds what is known of the job's end.
"""
