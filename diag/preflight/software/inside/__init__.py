"""Programs that run in CMD's own Python, whichever that is: the standard library only, in words that Python
3.8 knows."""
