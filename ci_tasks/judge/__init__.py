"""What happened: log, JUnit and exit code → evidence → verdict. Pure."""
