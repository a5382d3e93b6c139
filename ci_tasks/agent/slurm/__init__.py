"""Runs that are Slurm jobs: submitted and watched from the login node, run by the agent on the compute node."""
