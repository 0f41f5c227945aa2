"""The running process: it starts the doors and holds users, rights, the HTTP API and metrics."""
