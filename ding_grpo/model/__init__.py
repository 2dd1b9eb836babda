from .causal_lm import CausalLM
from .causal_lm_vac import CausalLMVAC
from .decoding import Decoding, PromptBatch
