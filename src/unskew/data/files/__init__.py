"""Files of data sets: found, downloaded, decoded, cached."""
