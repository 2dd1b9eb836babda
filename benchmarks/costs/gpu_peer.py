"""
TRL's side of the benchmark on a GPU: whole updates of ``GRPOTrainer`` on the same sizes, by ``generate`` or by vLLM in
the same process.
"""
import math
import time
from typing import Any, Dict, Iterator, Tuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from benchmarks.beside_trl.protocol import LEARNING_RATE, PEER, own_folder
from dizoo_llm.text.tokenizer import build_word_tokenizer

GIB = 2 ** 30


class Clock(TrainerCallback):
    """Seconds and tokens of each update."""

    def __init__(self, device: str) -> None:
        self._device, self.found = device, []

    def _now(self) -> float:
        if self._device == 'cuda':
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._since = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        tokens = self.trainer._metrics['train']['completions/mean_length'][-1] * rows
        memory = torch.cuda.max_memory_allocated() / GIB if self._device == 'cuda' else 0.
        self.found.append((self._now() - self._since, tokens, memory))


def arguments(size: Any, device: str, rounds: int, vllm: bool, eos: int) -> Dict[str, Any]:
    """
    Those of ``GRPOConfig``. Rows end as often as in gpu.py, by a bias of the token ``eos``. TRL's correction of
    differences between vLLM and the model is switched off: it reads all rows once more, and would correct the bias.
    """
    rows, bias = size.prompts * size.rows, math.log(2 * size.vocabulary / size.tokens)
    found = dict(
        PEER,
        use_cpu=device == 'cpu',
        bf16=device == 'cuda',
        per_device_train_batch_size=rows // 4,
        gradient_accumulation_steps=4,
        num_generations=size.rows,
        max_completion_length=size.tokens,
        generation_kwargs=dict(logit_bias={eos: bias}) if vllm else dict(sequence_bias=[[[eos], bias]]),
        learning_rate=LEARNING_RATE,
        max_steps=rounds + 1,
        seed=0,
    )
    if vllm:
        found.update(
            use_vllm=True,
            vllm_mode='colocate',
            vllm_max_model_length=size.prompt + size.tokens,
            vllm_importance_sampling_correction=False,
        )
    return found


def measure_peer(size: Any, device: str, rounds: int, vllm: bool = False) -> Iterator[Tuple[float, float, float]]:
    """Seconds, sampled tokens and GiB of each update but the first; ``size`` as in gpu.py."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    words = [f'w{number}' for number in range(size.vocabulary - 3)]
    tokenizer = build_word_tokenizer(words)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**{k: v for k, v in size.config().items() if k != 'model_type'}))
    folder = own_folder()
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    model = Qwen2ForCausalLM.from_pretrained(folder)  # where vLLM finds it
    if device == 'cuda':
        torch.cuda.empty_cache()  # for vLLM, which asks how much is free
        torch.cuda.reset_peak_memory_stats()
    prompts = [' '.join(words[int(i) % len(words)] for i in prompt) for prompt in size.some_prompts()]
    clock = Clock(device)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completion_ids, **kwargs: [float(len(set(ids))) for ids in completion_ids],
        train_dataset=Dataset.from_dict(dict(prompt=prompts)),
        callbacks=[clock],
        args=GRPOConfig(output_dir=own_folder(), **arguments(size, device, rounds, vllm, tokenizer.eos_token_id)),
    )
    clock.trainer = trainer
    trainer.train()
    yield from clock.found[1:]
