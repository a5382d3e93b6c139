"""CI's `docker run` on this host: its words, the adapter that rewrites them, and the containers of a run."""
