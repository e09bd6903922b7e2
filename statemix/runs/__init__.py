"""The files of a run, and what writes them: checkpoints, metrics, results, locks, trackers."""
