"""Why a run hangs: what its processes do, read from outside while it runs. Changes nothing of the job.

`look` says when, and has the records of what is seen; `collect` looks at all of a run and asks torch; `inspector` reads
the processes of one machine or container. What they mean is decided on the client.
"""
