"""Dispatch: the ops of scans and layers, the kernels of each device, and the choice of a kernel."""
