"""Actors of a Ray cluster; Ray is imported only when a run asks for it."""
