"""What is brought out of a run: listed files, Ray's logs, names of core files; within limits."""
