"""The five stream protocols, one folder each, with the same rooms in each."""
