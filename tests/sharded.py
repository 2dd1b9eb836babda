"""What the processes of ``tests/pipelines/test_sharding.py`` run: updates of a policy on rows of its own samples."""
import ctypes
import gc
import threading

import torch

from ding_common import parallel
from ding_grpo.data.batch import Batch
from ding_grpo.model import PromptBatch
from ding_grpo.model.sharding import layers_of, own, whole
from tests.policies import make_policy, sample_groups
from tests.shipped import load


def policy_of(case):
    """A small policy of think_answer with the changes of a case, divided among the processes of this run."""
    main, create = load('think_answer_grpo', policy=case.get('policy', {}))
    processes = parallel.world_size()
    main.policy.update(multi_gpu=processes > 1, shard=processes > 1 and case.get('shard', True))
    if 'pretrained' in main.policy.model:
        main.policy.model.pop('config')
    policy = make_policy(main, create)
    if case.get('sgd'):
        policy._optimizer = torch.optim.SGD(policy._learning.updater.trained)
    return policy


def groups(policy, update, failed):
    """Groups of uneven rows with random rewards; without ``failed`` of the rows of each group, the last ones."""
    rewards = torch.randint(0, 4, (8, 8), generator=torch.Generator().manual_seed(update))
    indices = range(policy.cfg.collect.groups)
    samples = sample_groups(policy, indices, collect=update, reward=lambda g, row: float(rewards[g, row]))
    for sample in samples:
        sample['failed'][len(sample['failed']) - failed:] = 1
    return samples


def learn(case):
    """Updates of a case. Returns the weights before and after them, the number of parts that this process added to keep
    step with the others, the optimizer steps of each update, and the sizes of what it held after the last backward
    pass."""
    policy, added, steps = policy_of(case), [0], []
    start = {name: whole(p.detach()).clone() for name, p in policy._model.named_parameters()}
    parts = Batch.parts

    def counted(batch, *args):
        for rows, part in parts(batch, *args):
            added[0] += len(rows) == 0
            yield rows, part

    Batch.parts, types = counted, set()
    multiplied = next(m for m in layers_of(policy._model)[0].modules() if isinstance(m, torch.nn.Linear))
    multiplied.register_forward_pre_hook(lambda module, args: types.add(module.weight.dtype))
    try:
        for update in range(case['updates']):
            metrics = policy.learn_mode.forward(groups(policy, update, case.get('failed', 0)))
            steps.append(metrics['optimizer_steps'])
    finally:
        Batch.parts = parts
    end = {name: whole(p.detach()).clone() for name, p in policy._model.named_parameters()}
    trained = policy._learning.updater.trained
    moments = [
        value for state in policy._learning.optimizer.state.values() for value in state.values() if value.dim() > 0
    ]
    kept = {
        'weights': [own(p).numel() for p in trained],
        'gradients': [own(p.grad).numel() for p in trained],
        'moments': [own(value).numel() for value in moments],
    }
    sampled = {name: p.detach().clone() for name, p in policy.whole_model.named_parameters()}
    whole_sizes = [p.numel() for p in trained]
    return dict(
        start=start,
        end=end,
        added=added[0],
        kept=kept,
        sizes=whole_sizes,
        sampled=sampled,
        types=types,
        steps=steps,
        evaluated=evaluated(policy),
    )


def evaluated(policy):
    """Logits of a completion as evaluation computes them."""
    with policy.actor.evaluating(), torch.no_grad():
        prompts = PromptBatch.of([torch.arange(1, 6)], torch.device('cpu'))
        return policy.whole_model.completion_logits(prompts, torch.arange(6, 9).unsqueeze(0))


def learn_all(cases):
    """Run cases one after the other, and save what each finds in the current folder."""
    parallel.start(False)
    try:
        for case in cases:
            torch.save(learn(case), f"{case['name']}_{parallel.rank()}.pt")
    finally:
        parallel.end()


class _Heap(ctypes.Structure):
    """What ``mallinfo2`` of glibc returns."""
    _fields_ = [(f'f{i}', ctypes.c_size_t) for i in range(4)] + [('mapped', ctypes.c_size_t)] + \
        [(f'f{i}', ctypes.c_size_t) for i in (5, 6)] + [('in_arenas', ctypes.c_size_t)] + \
        [(f'f{i}', ctypes.c_size_t) for i in (8, 9)]


def peak_of(function):
    """The largest number of bytes allocated while a function runs, beyond those at its start; sampled every
    millisecond. torch's profiler misses what FSDP2 frees by resizing."""
    library = ctypes.CDLL('libc.so.6')
    library.mallinfo2.restype = _Heap

    def held():
        heap = library.mallinfo2()
        return heap.mapped + heap.in_arenas

    gc.collect()
    start, ended, most = held(), threading.Event(), [0]

    def watch():
        while not ended.wait(0.001):
            most[0] = max(most[0], held() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    function()
    ended.set()
    thread.join()
    return most[0]


def size(tensors):
    return sum(own(t).numel() * t.element_size() for t in tensors)


def measure(case):
    """Bytes of the weights of a case as a whole, those of the sampling copy, and the most that learning held."""
    policy, found = policy_of(case), {}
    run = policy._learning.updater.run

    def measured(*args):
        found['copy_while_learning'] = 0 if policy._sharding is None else size(policy._sharding.copy.parameters())
        moments = [value for state in policy._learning.optimizer.state.values() for value in state.values()]
        gradients = [p.grad for p in policy._learning.updater.trained]  # of the last update
        kept = size([*policy._model.parameters(), *policy._model.buffers(), *moments, *gradients])
        del moments, gradients
        results = []
        found['learning'] = kept + peak_of(lambda: results.append(run(*args)))
        return results[0]

    for update in range(2):  # the first makes the optimizer's state
        if update == 1:
            policy._learning.updater.run = measured
        policy.learn_mode.forward(groups(policy, update, 0))
    found['weights'] = sum(p.numel() * p.element_size() for p in policy._model.parameters())
    found['copy'] = 0 if policy._sharding is None else size(policy._sharding.copy.parameters())
    return found


def measure_all(case):
    """``measure`` in each process; the first one writes what all of them find into the current folder."""
    parallel.start(False)
    try:
        found = parallel.all_gather(measure(case))
        if parallel.rank() == 0:
            torch.save(found, 'memory.pt')
    finally:
        parallel.end()
