"""The commands that the guides show: run, or at least read by the parser that would get them."""
