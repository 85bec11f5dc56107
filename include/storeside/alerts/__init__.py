"""Alerts: conditions on the ledger and on queues, the memory of what was told, and the message for any notifier."""
