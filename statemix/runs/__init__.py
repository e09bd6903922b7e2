"""A run on disk: its layout, atomic files, lock, metrics, checkpoint, result, plugins and trackers."""
