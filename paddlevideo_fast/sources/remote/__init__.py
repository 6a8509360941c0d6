"""Files of web servers and object stores, by URL."""
