"""Data sets, how they are dealt to clients, and how a client's samples become batches."""
