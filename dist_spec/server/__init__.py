"""The side that faces clients; talks messages and imports no torch."""
