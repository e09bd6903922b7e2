"""From the ledger to tables, figures and a page; nothing is typed by hand."""
