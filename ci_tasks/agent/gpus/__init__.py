"""The GPUs of this host: what nvidia-smi shows, their lock files, and which of them a job may use."""
