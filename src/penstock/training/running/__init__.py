"""Running what a configuration says: a directory, a lock, checkpoints, signals, a summary."""
