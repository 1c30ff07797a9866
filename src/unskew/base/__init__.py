"""What everything else is built on; nothing here imports anything above it."""
