"""What a run did, from what it left: evidence and status, the analysis of a failure, metrics, records and history."""
