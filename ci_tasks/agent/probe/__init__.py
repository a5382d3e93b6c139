"""The probe: what a run's Python processes say of themselves, in files of the run directory.

`payload` is loaded by every interpreter that the run made or that vanishes with it; `evidence` puts it
there, and reads what it wrote. All of it is the job's claim.
"""
