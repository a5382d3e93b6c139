"""A pretend reinforcement-learning framework: slime's shape, in plain Python, on GPUs that exist only by number."""
