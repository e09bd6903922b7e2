"""What the scans cost, measured on this machine."""
