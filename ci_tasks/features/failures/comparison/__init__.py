"""Your tree and its base on one host: is a failure yours, was it there before, or is the row flaky?"""
