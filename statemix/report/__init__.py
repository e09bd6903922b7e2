"""Tables, figures and a page, all rendered from the ledger."""
