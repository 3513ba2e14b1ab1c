"""The paper's experiments: run definitions, the ledger of results, and many machines."""
