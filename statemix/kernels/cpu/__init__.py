"""CPU kernels in C++ with a plain C interface: fused gates and scans, for x86-64 and aarch64."""
