"""What is made of a run: report, audit, comparison, prediction, pictures."""
