"""Looking inside trained layers."""
