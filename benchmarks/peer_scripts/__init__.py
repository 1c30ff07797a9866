"""One script a peer; each runs in that peer's own virtual environment and uses nothing of unskew."""
