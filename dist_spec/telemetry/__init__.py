"""What is measured and how it is told; decides nothing."""
