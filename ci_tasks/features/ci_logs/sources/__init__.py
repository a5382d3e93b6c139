"""Where logs come from: files, standard input, and GitHub with what its API knows of a job."""
