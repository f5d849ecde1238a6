"""What billing's background work is called."""

EXPORT_TASK = "billing.export"
FORGET_TASK = "billing.forget"
STATEMENT_TASK = "billing.statement"
