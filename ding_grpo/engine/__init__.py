"""Sampling by an inference engine: a server with a copy of the weights, which is asked over HTTP."""
