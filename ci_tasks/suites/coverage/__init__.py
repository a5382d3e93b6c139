"""What a workflow's rows cover, read from the workflow and the sources of its tests."""
