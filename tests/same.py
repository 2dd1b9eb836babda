import torch


def same(a, b, path=''):
    """Equal to the last bit, whatever is nested in whatever."""
    if isinstance(a, dict):
        assert set(a) == set(b), path
        for key in a:
            measured = any(word in str(key) for word in ('seconds', 'memory_mib'))  # other in each run
            if not measured and key not in ('evaluating', 'logs'):
                same(a[key], b[key], f'{path}.{key}')
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f'{path}[{i}]')
    elif isinstance(a, torch.Tensor):
        assert a.dtype is b.dtype and torch.equal(a, b), path
    else:
        assert a == b or a != a and b != b, path
