"""The heart: trees, methods, contexts, the local loop and the round loop."""
