"""What a test asks a model hub for before it trains, as its source says it."""
