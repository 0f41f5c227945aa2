"""Benchmarks: `python -m bench [GROUP ...]`, or `make bench ONLY=log`.

Every figure stands beside a limit or a peer measured in the same run.
"""
