"""The spool itself: keeps rows of runs, and gives them to readers."""
