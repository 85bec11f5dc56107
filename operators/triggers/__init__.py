"""Triggers of deferred tasks and of watched queues."""
