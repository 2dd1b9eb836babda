"""Time of an update by kind of operation, from torch's profiler."""
from typing import Any, Dict

from torch.profiler import ProfilerActivity, profile

KINDS = {
    'products': ('mm', 'addmm', 'bmm', 'baddbmm', '_linear_pointwise', 'linear', 'matmul'),
    'attention': (
        '_scaled_dot_product_flash_attention_for_cpu', '_scaled_dot_product_flash_attention_for_cpu_backward'
    ),
    'copies': (
        'copy_', 'clone', 'cat', 'stack', 'fill_', 'zero_', 'zeros', 'index', 'index_select', 'index_put_',
        '_index_put_impl_', 'index_copy_', 'index_add_', 'gather', 'scatter_add_', 'masked_fill_', 'masked_fill',
        'where', 'embedding', 'embedding_dense_backward', 'constant_pad_nd', 'slice_backward', 'select_backward',
        'masked_scatter', 'nonzero', 'repeat', 'split_with_sizes_copy', 'empty', 'empty_strided', 'empty_like'
    ),
    'optimizer': ('_fused_adamw_', 'linalg_vector_norm', '_foreach_norm', '_foreach_mul_'),
}
LIBRARIES = ('aten', 'mkldnn')
OTHER, BETWEEN = 'elementwise and other', 'between operations'
NAMES = (*KINDS, OTHER, BETWEEN)


class Profile:
    """
    Overview:
        Measures while it is entered. Then ``found`` has the milliseconds of each of ``NAMES`` but the last: self time
        of torch's operations. Python runs between them, also within an autograd function or an optimizer's step.
    """

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], acc_events=True)
        self.found: Dict[str, float] = {}

    def __enter__(self) -> 'Profile':
        self._profile.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._profile.__exit__(*raised)
        kind_of = {name: kind for kind, names in KINDS.items() for name in names}
        self.found = dict.fromkeys(NAMES[:-1], 0.)
        for event in self._profile.key_averages():
            library, _, name = event.key.rpartition('::')
            if library in LIBRARIES:
                self.found[kind_of.get(name, OTHER)] += event.self_cpu_time_total / 1e3
