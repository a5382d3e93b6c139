"""The working tree as it is, somewhere else, proven equal by its tree hash. Never writes into the checkout."""
