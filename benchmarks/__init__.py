"""What is timed, and the plain harness it is timed against."""
