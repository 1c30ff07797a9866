"""Real sites over Flower: its processes carry our messages; nothing here is imported without the extra."""
