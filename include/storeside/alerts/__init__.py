"""Alerts: conditions on the ledger and on queues, the record of sent problems, and the message for any notifier."""
