"""Each command as a short story over the rooms: the only place where a plan meets the world."""
