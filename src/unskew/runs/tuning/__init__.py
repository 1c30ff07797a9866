"""Fair tuning: the same budget of settings for every method, chosen on validation data, compared on fresh seeds."""
