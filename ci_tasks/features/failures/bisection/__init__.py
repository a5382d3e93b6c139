"""Which commit made a row fail, from runs that may be flaky: what is known, what to run next, when it is enough."""
