"""The state of loads in ClickHouse: their ledger, their plans, and their locks."""
