"""What a model says of each row, given draws."""
