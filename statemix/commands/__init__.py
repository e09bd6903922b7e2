"""The commands as data: options with their help, and what each runs.  Nothing here imports torch before a command runs."""
