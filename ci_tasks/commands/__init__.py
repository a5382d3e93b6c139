"""The commands, one function each, a few lines over a flow. Heavy imports stay inside the functions."""
