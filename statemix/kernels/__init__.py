"""Device code, which only `ops` imports; it imports nothing from the package above."""
