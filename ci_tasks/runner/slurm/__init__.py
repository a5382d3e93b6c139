"""Runs that Slurm starts: submitted and watched from the login node, run by the same runner on the compute node."""
