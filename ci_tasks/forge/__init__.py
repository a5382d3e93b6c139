"""Where CI keeps what it said: logs that somebody saved, and GitHub's own, with what its API knows beside them."""
