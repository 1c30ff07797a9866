"""Real sites: what travels between a server and the places that hold the data, and who answers there."""
