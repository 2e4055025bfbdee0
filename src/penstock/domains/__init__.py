"""Applications on top of the core, one package each. The core imports none of them."""
