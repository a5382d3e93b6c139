"""Why a run hangs, and which rank: what its agent saw of its processes, read and concluded from."""
