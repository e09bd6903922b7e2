"""The commands as dataclasses: options with their help, and `run`, which imports torch."""
