from .causal_lm import CausalLM
from .causal_lm_vac import CausalLMVAC
from .read.decoding import Decoding
from .read.prompts import PromptBatch
from .recurrent_vac import RecurrentVAC
