"""For tests, ours and our users': a fake disk, a fake clock, and checkers."""
