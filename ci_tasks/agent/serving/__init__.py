"""Speaking with a client: frames, requests, and what becomes of the runs that it watches."""
