"""Device code: imported by ops alone, and importing nothing of the package above it."""
