"""`python -m penstock.cli` is the `penstock` command."""

from penstock.cli.main import main

main()
