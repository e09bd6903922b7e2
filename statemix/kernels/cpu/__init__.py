"""C++ behind a plain C ABI: gates and scan fused, for every x86-64 and aarch64."""
