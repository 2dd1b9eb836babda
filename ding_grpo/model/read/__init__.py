"""
How a model reads rows of tokens, and continues them. The words of this package:

- **Row**: a prompt and its completion. **Line**: a row that still grows, while decoding.
- **Read**: run the model over tokens, for their hidden states or logits. Prompts that are equal, and common beginnings,
  are read once where the architecture allows it.
- **Packed row**: all tokens of a batch, one after the other, as one row for the model (``packed_row``).
- **Segment**: tokens that follow each other in the packed row, such as a prompt. **Band**: segments of similar length
  in a grid, for operations that need one (``bands``).
- **Way**: how rows are read, one of ``decoding.WAYS``. With 'shared', completions are read by ``read_shared``,
  otherwise each row from its start, by ``read_unshared``. ``ding_grpo.model.trial`` finds the fastest correct way.

The modules, each on those before it: ``prompts``, ``row_tree``, ``bands``, ``attention``; ``whole`` (prompts and
completions together, with gradients), ``growing`` (token by token, without gradients);
``packed_row``, which puts either into a model; ``completions`` and ``decoding``, which the model calls.
"""
