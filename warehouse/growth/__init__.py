"""Which cards are getting worse: statistics of ECC error counts over a fleet's history."""
