"""From a scan or a layer to the device that computes it: registered ops, their kernels, and the choice between them."""
