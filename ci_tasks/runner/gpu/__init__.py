"""GPUs of this host: seeing them, their locks, and keeping a job off those that it must not have."""
