"""Runs bucket jobs: plans, submits, follows, reconciles and retries copies and transforms of AIStore."""
