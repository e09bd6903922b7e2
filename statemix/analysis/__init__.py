"""Analysis of trained layers: spectra, attention matrices, costs, and the groups they can track."""
