"""What a test launches: recorded by running it under stubs in a sandbox, or read from its syntax tree."""
