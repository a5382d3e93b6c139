"""The report of runs as one HTML page that needs nothing but a browser: values → text, logs as a stream."""
