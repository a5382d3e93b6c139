"""A job that failed in CI, run again: is it the same failure?"""
