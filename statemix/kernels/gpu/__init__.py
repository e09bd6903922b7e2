"""The scans in Triton, for NVIDIA and AMD GPUs."""
