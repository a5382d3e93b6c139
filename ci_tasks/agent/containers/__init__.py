"""CI's `docker run` on this host: its command line, the adapter that rewrites it, and the containers of a run."""
