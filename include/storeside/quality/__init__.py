"""Great Expectations suites that users give, and the verdicts of loads on their rows."""
