"""The places where runs happen. So far this machine; a host differs in primitives only, callers never ask its kind."""
