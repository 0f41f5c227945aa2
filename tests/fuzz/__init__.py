"""Fuzzing: `make fuzz`, or `python -m tests.fuzz [TARGET ...] [--seconds N]`."""
