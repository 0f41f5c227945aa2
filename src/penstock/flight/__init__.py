"""The Arrow Flight door, for bulk reads and appends."""
