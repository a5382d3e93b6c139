"""Why a run hangs: what its processes do, read from outside while it runs. Changes nothing of the job.

`inspector` reads the processes of one machine or container, `collect` calls it for all of a run and asks torch, `look`
says when, `facts` are the records that this gives. What they mean is decided on the client.
"""
