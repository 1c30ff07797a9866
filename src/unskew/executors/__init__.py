"""Who does the clients' work: one file per way."""
