"""What failed, in one line of a log: the first that matters, its cause, and whether the code or the environment is
at fault.

`rules.yaml` knows what lines mean, `log_prefixes` takes off what stands before a line's text, `tracebacks` and
`candidate_reader` gather candidates. `features` says what speaks for each, `weights.json` what that is worth, `ranking`
picks one, says whose fault it is and how sure that is. `evidence` and `signature` say which failure it is; `log_triage`
puts it together with what is known of the job's end.
"""
