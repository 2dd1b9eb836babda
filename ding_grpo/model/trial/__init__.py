"""
What a trial of an architecture finds: the fastest correct way to read rows (``choose``), and how the output layer
computes logits (``output_layer``). Both compute in float64 (``float64``), so that they depend on
the architecture and not on its weights. Models of one architecture are tried once in a process.
"""
