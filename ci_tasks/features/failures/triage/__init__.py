"""What failed, in one line of a log: the first that matters, its cause, and whether the code or the environment is
at fault.

`rules.yaml` knows what lines mean, `log_prefixes` takes off what stands before a line's text, `tracebacks` and
`candidate_reader` gather candidates. `features` says what speaks for each, `weights.json` what that is worth, `ranking`
picks one, `certainty` says whose fault it is and how sure that is. `signature` says which failure it is; `analysis`
adds what is known of the job's end.
"""
