"""What each command prints. A command imports its view after its arguments are parsed."""
