"""The processes: thin loops that move messages, run models and keep time around the pure sessions."""
