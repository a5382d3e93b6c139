"""The code under test on this host: a store of objects, and checkouts that are proven by their hash."""
