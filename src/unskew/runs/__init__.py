"""A run: its configuration, its parts, its rounds, its folder."""
