"""Scans in Triton, for NVIDIA and AMD GPUs."""
