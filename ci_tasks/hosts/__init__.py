"""Where rows run: this machine, a box over SSH, a Slurm cluster. Callers never ask which kind they hold."""
