"""Tables and pictures."""
