"""
What the two sides of the benchmark of whole updates have in common. Each is a process of its own that makes one update
whenever it is told to, so that the sides can alternate; standard library and torch alone, since they live in different
virtual environments.
"""
import atexit
import json
import math
import os
import shutil
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Tuple

import torch

LEARNING_RATE = 1e-5
# Of TRL's ``GRPOConfig`` in every comparison: the same loss, sampling and optimizer as here, and no records.
PEER = dict(
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    temperature=1.0,
    beta=0.0,
    loss_type='grpo',
    lr_scheduler_type='constant',
    max_grad_norm=1.0,
    logging_steps=10 ** 6,
    save_strategy='no',
    report_to=[],
    disable_tqdm=True,
)


def read_work(folder: str) -> Dict[str, Any]:
    """
    Overview:
        What ``make_work`` wrote.
    Arguments:
        - folder (:obj:`str`): With ``work.json`` and a model folder ``model``.
    """
    with open(os.path.join(folder, 'work.json')) as f:
        return json.load(f)


def own_folder() -> str:
    """
    Overview:
        A new folder, which is removed when the process ends.
    """
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def equal_data(work: Dict[str, Any], tokenizer: Any) -> Dict[str, torch.Tensor]:
    """
    Overview:
        Prompts and made-up completions of uneven lengths, for a loss that both sides must find. Prompts are padded on
        the left.
    Arguments:
        - work (:obj:`Dict`): From ``read_work``. ``checked_prompts``, if it is there, has the tokens of prompts, and \
            ``checked_logp`` the log-probabilities that the model gives to these completions.
        - tokenizer (:obj:`PreTrainedTokenizerBase`): The work's.
    Shapes:
        - prompt (:obj:`torch.LongTensor`): :math:`(B, L)`
        - prompt_mask (:obj:`torch.LongTensor`): :math:`(B, L)`
        - completion (:obj:`torch.LongTensor`): :math:`(B, T)`
        - mask (:obj:`torch.LongTensor`): :math:`(B, T)`
        - adv (:obj:`torch.FloatTensor`): :math:`(B, )`
        - logp_old (:obj:`torch.FloatTensor`): :math:`(B, T)`
    """
    generator = torch.Generator().manual_seed(1)
    size, tokens, words = (work[key] for key in ('group_size', 'tokens', 'vocabulary'))
    prompts = work.get('checked_prompts') or tokenizer(work['prompts'][:work['groups']])['input_ids']
    longest = max(map(len, prompts))
    prompt = torch.tensor([[0] * (longest - len(p)) + p for p in prompts]).repeat_interleave(size, 0)
    prompt_mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]).repeat_interleave(size, 0)
    shape, words = (len(prompt), tokens), words - 3
    length = torch.randint(1, tokens + 1, shape[:1], generator=generator)
    return dict(
        prompt=prompt,
        prompt_mask=prompt_mask,
        completion=torch.randint(0, words, shape, generator=generator),
        mask=(torch.arange(tokens) < length.unsqueeze(1)).long(),
        adv=torch.randn(shape[0], generator=generator),
        logp_old=torch.randn(shape, generator=generator) * 0.2 +
        torch.tensor(work.get('checked_logp', -math.log(words)))
    )


def gradient_norm(model: torch.nn.Module) -> float:
    """Of a loss that was differentiated; the gradients are gone then."""
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)).item()
    model.zero_grad()
    return norm


class Gate:
    """
    Overview:
        Where a process waits for the word to make its next update, and tells how long the last one took. At the word \
        ``check`` it calls ``check``, which gives loss and gradient norm of ``equal_data``; at ``record`` it makes an \
        update within ``record()``, a context manager, and tells what that has found; at ``profile`` it does so \
        with ``profile()``; at ``save FOLDER`` it saves the model.
    """
    check: Callable[[], Tuple[float, float]]
    record: Callable[[], Any]
    profile: Callable[[], Any]
    save: Callable[[str], None]

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), 'w')  # whatever else is printed goes to stderr
        os.dup2(2, 1)
        self._since = 0.0
        self._first = True
        self._recorder: Any = None

    def wait(self) -> None:
        """Before an update."""
        if self._first:
            self._first = False
            _forget_peak()
            self._tell(ready=True, memory=_memory(), versions=versions())
        word = sys.stdin.readline().strip()
        if word == 'check':
            found = self.check()
            _forget_peak()  # since the check reads all rows at once
            self._tell(check=found)
            word = sys.stdin.readline().strip()
        if word.startswith('save '):
            self.save(word[len('save '):])
            self._tell(saved=True)
            word = sys.stdin.readline().strip()
        if word in ('record', 'profile'):
            self._recorder = getattr(self, word)()
            self._recorder.__enter__()
        elif word != 'go':
            os._exit(0)
        self._since = time.perf_counter()

    def done(self, **told: float) -> None:
        """After it."""
        seconds = time.perf_counter() - self._since
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            told.update(self._recorder.found)
            self._recorder = None
        self._tell(seconds=seconds, memory=_memory(), **told)

    def _tell(self, **told: Any) -> None:
        self._out.write(json.dumps(told) + '\n')
        self._out.flush()


def _forget_peak() -> None:
    with open('/proc/self/clear_refs', 'w', encoding='utf-8') as f:
        f.write('5')


def _memory() -> int:
    """Largest resident memory since ``_forget_peak``, in bytes."""
    with open('/proc/self/status', encoding='utf-8') as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith('VmHWM:'))


def versions() -> Dict[str, str]:
    """Of what there is in this environment."""
    from importlib.metadata import PackageNotFoundError, version
    found = {}
    for name in ('torch', 'transformers', 'trl', 'DI-engine', 'ding-grpo'):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            pass
    return found
