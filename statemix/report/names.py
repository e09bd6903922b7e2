"""Plain names of models, tasks and experiments, for readers who have not seen the code."""

__all__ = ["EXPERIMENTS", "kind_of", "plain_column", "plain_row", "size_of"]

EXPERIMENTS = {
    "table_mad": "Recall, copying and compression",
    "table_groups": "Products of permutations",
    "table_chomsky": "Regular languages and modular arithmetic",
    "fig_normalisation": "Normalisation of the gates",
    "fig_selectivity": "Selectivity of the gates",
    "fig_scaling": "Number of states",
    "fig_sample_efficiency": "Number of training sequences",
    "fig_length": "Length of the test sequences",
    "tracking_s5": "Reliable state tracking",
    "certified": "Models proved at every length",
    "fig_start": "Start of the gates",
    "fig_depth": "Depth instead of block size",
    "signed_gates": "Signed gates",
    "fig_seeds": "Spread over seeds",
    "fig_eigenvalues": "Eigenvalues on S5",
}
_ROWS = {
    "Mamba2": "Mamba-2",
    "DeltaNet[-1,1]": "Gated DeltaNet",
    "DeltaProduct4[-1,1]": "DeltaProduct, 4 products",
}
_COLUMNS = {
    "recall": "in-context recall",
    "copy": "selective copying",
    "compress": "compression",
    "overall": "mean",
    "S2-10k": "S2, 10,000 sequences",
    "S3-10k": "S3, 10,000 sequences",
    "S3-250": "S3, 250 sequences",
    "S4-50k": "S4, 50,000 sequences",
    "S4-3k": "S4, 3,000 sequences",
    "S5-100k": "S5, 100,000 sequences",
    "cycle_nav": "walk on a cycle of five",
    "mod_arith_no_brackets": "modular arithmetic",
    "mod_arith_brackets": "modular arithmetic with brackets",
    "even_pairs": "even pairs",
}


def kind_of(row: str) -> str:
    """The layer of a row: "BD-LRU" of "BD-LRU m4"."""
    kind, _, size = row.rpartition(" ")
    return kind if size[:1] in ("m", "k") and size[1:].isdigit() else row


def size_of(row: str) -> int | None:
    """The block size m of a row such as "BD-LRU m4", or None."""
    _, _, size = row.rpartition(" m")
    return int(size) if size.isdigit() else None


def plain_row(row: str) -> str:
    """A model's name: "BD-LRU, m = 4"."""
    kind, size = kind_of(row), size_of(row)
    if size is not None:
        return f"{kind}, m = {size}"
    _, _, span = row.rpartition(" k")
    return f"convolution over {span} steps" if kind == "Conv" else _ROWS.get(row, row)


def plain_column(column: str) -> str:
    """A task's name: "S3, 250 sequences"."""
    name, comma, rest = column.partition(", ")
    return f"{_COLUMNS.get(name, name)}{comma}{rest}"
