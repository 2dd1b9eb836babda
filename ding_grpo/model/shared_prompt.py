"""
Reading prompts once, however many rows continue them, for any architecture of ``transformers`` whose attention goes
through its ``AttentionInterface``. All tokens of a batch lie in one row, the prompts' first, then the rows' own, and
nothing is padded but inside the attention; there a row's tokens see their prompt and, of their own row, what is before
them. Exact: the same sums as with each row read whole, in another order.
"""
import sys
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = 'shared_prompt'
ROOM = 16  # tokens of each row that a cache has room for at first; it doubles
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Grid:
    """
    Overview:
        Where some tokens of the packed row stand in a grid of equally long rows, padded on the right.
    """

    def __init__(self, start: int, lengths: Tensor, rows: int, columns: int, row: Optional[Tensor] = None) -> None:
        """
        Overview:
            Lay the tokens out.
        Arguments:
            - start (:obj:`int`): Position of the first of them.
            - lengths (:obj:`torch.LongTensor`): Tokens of each row of them, in their order.
            - rows (:obj:`int`): Rows of the grid.
            - columns (:obj:`int`): Columns of the grid.
            - row (:obj:`Optional[torch.LongTensor]`): Row of the grid for each of these; None: one after the other.
        """
        self.shape = (rows, columns)
        tokens = int(lengths.sum())
        self._slice = slice(start, start + tokens)
        self._whole = tokens == rows * columns and row is None
        if not self._whole:
            device = lengths.device
            row = torch.arange(len(lengths), device=device) if row is None else row
            first = (row * columns - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
            self._cell = first + torch.arange(tokens, device=device)  # (tokens, )
            self._index = torch.zeros(rows * columns, dtype=torch.long, device=device)
            self._index[self._cell] = torch.arange(tokens, device=device)  # (cells, ), 0 where nothing stands

    def place(self, x: Tensor) -> Tensor:
        """
        Overview:
            Tokens into the grid; what stands in empty cells is of no account.
        Shapes:
            - x (:obj:`torch.Tensor`): :math:`(1, H, N, D)`, then :math:`(H, rows, columns, D)`
        """
        x = x[0, :, self._slice]
        if not self._whole:
            x = _Move.apply(x, self._index, self._cell)
        return x.unflatten(1, self.shape)

    def take(self, x: Tensor) -> Tensor:
        """
        Overview:
            Out of the grid again.
        Shapes:
            - x (:obj:`torch.Tensor`): :math:`(rows, columns, *)`, then :math:`(tokens, *)`
        """
        x = x.flatten(0, 1)
        return x if self._whole else _Leave.apply(x, self._index, self._cell)


class _Move(torch.autograd.Function):
    """Tokens to cells; each token has one, so that its gradient is that cell's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, cell: Tensor) -> Tensor:
        ctx.save_for_backward(cell)
        return x.index_select(1, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        return grad.index_select(1, ctx.saved_tensors[0]), None, None


class _Leave(torch.autograd.Function):
    """Cells to tokens; empty cells get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, cell: Tensor) -> Tensor:
        ctx.save_for_backward(cell)
        ctx.cells = len(x)
        return x.index_select(0, cell)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        whole = grad.new_zeros(ctx.cells, *grad.shape[1:])
        return whole.index_copy_(0, ctx.saved_tensors[0], grad), None, None


class Options(NamedTuple):
    """
    Overview:
        What a layer asks of its attention.
    """
    scale: float
    window: Optional[int] = None
    softcap: Optional[float] = None


class Whole:
    """
    Overview:
        Prompts and completions read at once, differentiable.
    """

    def __init__(self, prompt_length: Tensor, row: Tensor, length: Tensor) -> None:
        """
        Overview:
            Lay out P prompts and B rows.
        Arguments:
            - prompt_length (:obj:`torch.LongTensor`): :math:`(P, )`, tokens of each prompt.
            - row (:obj:`torch.LongTensor`): :math:`(B, )`, which prompt each row continues, in ascending order.
            - length (:obj:`torch.LongTensor`): :math:`(B, )`, tokens of each row.
        """
        prompts, longest = len(prompt_length), int(prompt_length.max())
        self._prompts = Grid(0, prompt_length, prompts, longest)
        self._prompt_length = prompt_length
        start = int(prompt_length.sum())
        columns = int(length.max()) if len(length) else 0
        self._completions: Optional[Grid] = None
        if columns > 0:
            self._rows, place, even = _places(row, prompts)
            self._completions = Grid(start, length, prompts * self._rows, columns, None if even else place)
        self._masks: Dict[Optional[int], Tuple] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        """
        Overview:
            Attention of all tokens.
        Shapes:
            - q (:obj:`torch.Tensor`): :math:`(1, H, N, D)`
            - k (:obj:`torch.Tensor`): :math:`(1, K, N, D)`, H a multiple of K
            - v (:obj:`torch.Tensor`): :math:`(1, K, N, D)`
            - out (:obj:`torch.Tensor`): :math:`(1, N, H, D)`
        """
        qp, kp, vp = (self._prompts.place(x).transpose(0, 1) for x in (q, k, v))  # (P, H, L, D)
        options = self._simpler(options)
        of_prompts = _causal(qp, kp, vp, options)  # (P, H, L, D)
        parts = [self._prompts.take(of_prompts.transpose(1, 2))]  # (tokens, H, D)
        if self._completions is not None:
            qc, kc, vc = (self._completions.place(x) for x in (q, k, v))  # (H, P R, T, D)
            of_rows = self._continue(qc, kc, vc, kp, vp, options)  # (P R, T, H, D)
            parts.append(self._completions.take(of_rows))
        return torch.cat(parts).unsqueeze(0)

    def _simpler(self, options: Options) -> Options:
        """Without a window that holds everything."""
        longest = self._prompts.shape[1] + (0 if self._completions is None else self._completions.shape[1])
        return options._replace(window=None) if options.window is not None and options.window >= longest else options

    def _continue(self, q: Tensor, k: Tensor, v: Tensor, kp: Tensor, vp: Tensor, options: Options) -> Tensor:
        heads, rows, columns, size = q.shape
        prompts, groups = kp.shape[:2]
        repeat = heads // groups
        above = q.view(groups, repeat, prompts, self._rows * columns, size).permute(2, 0, 1, 3, 4)
        above = above.reshape(prompts, groups, repeat * self._rows * columns, size)  # (P, K, rep R T, D)
        own = [x.transpose(0, 1) for x in (q, k, v)]  # (P R, H, T, D)
        if repeat > 1:
            own[1:] = [x.repeat_interleave(repeat, 1) for x in own[1:]]
        mask, own_mask = self._mask(options.window, repeat, kp)
        if _fast(q, options):
            out = _Joined.apply(above, kp, vp, *own, mask, options.scale, self._rows)
        else:
            out = _joined(above, kp, vp, *own, mask, own_mask, options, self._rows)
        return out.transpose(1, 2)  # (P R, T, H, D)

    def _mask(self, window: Optional[int], repeat: int, like: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """What is added for the prompts' keys, (P, 1, 1 or rep R T, L), and for the rows' own, (T, T)."""
        if window not in self._masks:
            columns, longest = self._completions.shape[1], self._prompts.shape[1]
            length = self._prompt_length.view(-1, 1, 1, 1)
            key = torch.arange(longest, device=like.device)
            step = torch.arange(columns, device=like.device)
            seen = None if bool((length == longest).all()) else key < length
            own = step.unsqueeze(1) >= step
            if window is not None:
                position = length + step.repeat(repeat * self._rows).view(-1, 1)  # (P, 1, rep R T, 1)
                near = position - key < window
                seen = near if seen is None else near & seen
                own = own & (step.unsqueeze(1) - step < window)
            self._masks[window] = (None if seen is None else _added(seen, like), _added(own, like))
        return self._masks[window]


class Growing:
    """
    Overview:
        Prompts first, then one token a row at a time, without gradients: keys and values of a prompt are kept once, \
        those of the rows beside them.
    """

    def __init__(self, prompt_length: Tensor, row: Tensor) -> None:
        """
        Overview:
            Begin with prompts.
        Arguments:
            - prompt_length (:obj:`torch.LongTensor`): :math:`(P, )`, tokens of each prompt.
            - row (:obj:`torch.LongTensor`): :math:`(B, )`, which prompt each row continues.
        """
        self._prompts = Grid(0, prompt_length, len(prompt_length), int(prompt_length.max()))
        self._prompt_length = prompt_length
        self._of_prompts: Dict[int, Tuple[Tensor, Tensor]] = {}  # by layer (P, K, L, D)
        self._own: Dict[int, Tuple[Tensor, Tensor]] = {}  # by layer (B, K, room, D)
        self._read = 0  # tokens of each row
        self._set(row)

    @property
    def position(self) -> Tensor:
        """Position of each line's next token, (B, )."""
        return self._length + self._read

    def _set(self, row: Tensor) -> None:
        longest = self._prompts.shape[1]
        short = self._prompt_length.view(-1, 1, 1, 1) <= torch.arange(longest, device=row.device)
        self._seen = ~short if short.any() else None  # (P, 1, 1, L): the prompts' keys, where some are padding
        self._row = row
        self._length = self._prompt_length[row]  # (B, )
        self._rows, self._cell, self._whole = _places(row, len(self._prompt_length))
        self._line = torch.zeros(len(self._prompt_length) * self._rows, dtype=torch.long, device=row.device)
        self._line[self._cell] = torch.arange(len(row), device=row.device)

    def keep(self, lines: Tensor) -> None:
        """
        Overview:
            Go on with some lines only.
        Arguments:
            - lines (:obj:`torch.LongTensor`): Their numbers.
        """
        self._own = {layer: tuple(x[lines] for x in own) for layer, own in self._own.items()}
        row = self._row[lines]
        used, row = row.unique(return_inverse=True)
        if len(used) < len(self._prompt_length):
            self._prompt_length = self._prompt_length[used]
            self._of_prompts = {layer: tuple(x[used] for x in of) for layer, of in self._of_prompts.items()}
        self._set(row)

    def stepped(self) -> None:
        """A token of each line has been read."""
        self._read += 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
        """As ``Whole.attend``: of the prompts at first, then of one token a line."""
        if layer not in self._of_prompts:
            q, k, v = (self._prompts.place(x).transpose(0, 1) for x in (q, k, v))
            self._of_prompts[layer] = (k.contiguous(), v.contiguous())
            longest = self._prompts.shape[1]
            options = options._replace(window=None) if (options.window or 0) >= longest else options
            return self._prompts.take(_causal(q, k, v, options).transpose(1, 2)).unsqueeze(0)
        kp, vp = self._of_prompts[layer]
        k, v = self._append(layer, k[0].transpose(0, 1), v[0].transpose(0, 1))  # (B, K, t + 1, D)
        heads, lines, size = q.shape[1:]
        prompts, groups = kp.shape[:2]
        repeat = heads // groups
        q = q[0].transpose(0, 1).reshape(lines, groups, repeat, size)
        above = q if self._whole else q[self._line]
        above = above.view(prompts, self._rows, groups, repeat, size).transpose(1, 2)
        above = above.reshape(prompts, groups, self._rows * repeat, size)
        longest = self._prompts.shape[1]
        if options.window is not None and options.window >= longest + self._read + 1:
            options = options._replace(window=None)
        mask, own_mask = self._mask(options.window, repeat, kp)
        if _fast(q, options):
            out, lse = _flash(above, kp, vp, attn_mask=mask, scale=options.scale)
            own_out, own_lse = _flash(q, k, v, scale=options.scale)
            out, lse = self._lines(out, repeat), self._lines(lse.unsqueeze(-1), repeat)
            out = out.lerp_(own_out, torch.sigmoid(own_lse.unsqueeze(-1) - lse).to(out.dtype))
        else:
            score = self._lines(_score(above, kp, mask, options), repeat)  # (B, K, rep, L)
            own_score = _score(q, k, own_mask, options)
            weight = _softmax(score, own_score, v.dtype)
            of_prompt = weight[..., :longest][self._line] if not self._whole else weight[..., :longest]
            of_prompt = of_prompt.view(prompts, self._rows, groups, repeat, longest).transpose(1, 2)
            out = self._lines(of_prompt.reshape(prompts, groups, -1, longest) @ vp, repeat)
            out = out + weight[..., longest:] @ v
        return out.reshape(1, lines, heads, size)

    def _lines(self, x: Tensor, repeat: int) -> Tensor:
        """(P, K, R rep, *) -> (B, K, rep, *)."""
        x = x.unflatten(2, (self._rows, repeat)).transpose(1, 2).flatten(0, 1)  # (P R, K, rep, *)
        return x if self._whole else x[self._cell]

    def _append(self, layer: int, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        room = self._own[layer][0].shape[2] if layer in self._own else 0
        if room == 0:
            self._own[layer] = tuple(x.new_empty(*x.shape[:2], ROOM, x.shape[2]) for x in (k, v))
        elif self._read == room:
            self._own[layer] = tuple(F.pad(x, (0, 0, 0, room)) for x in self._own[layer])
        for own, x in zip(self._own[layer], (k, v)):
            own[:, :, self._read:self._read + 1] = x.unsqueeze(2)
        return tuple(own[:, :, :self._read + 1] for own in self._own[layer])

    def _mask(self, window: Optional[int], repeat: int, like: Tensor) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """What is added for the prompts' keys, (P, 1, 1, L), and for the lines' own, (t + 1, )."""
        seen = self._seen
        if window is None:
            return None if seen is None else _added(seen, like), None
        key = torch.arange(self._prompts.shape[1], device=like.device)
        near = self._prompt_length.view(-1, 1, 1, 1) + self._read - key < window
        step = torch.arange(self._read + 1, device=like.device)
        return _added(near if seen is None else near & seen, like), _added(self._read - step < window, like)


def _places(row: Tensor, prompts: int) -> Tuple[int, Tensor, bool]:
    """Of rows that continue prompts, in a grid with as many places for each prompt: how many, which place each row has
    (B, ), and whether they are all places in their order."""
    counts = row.bincount(minlength=prompts)
    most = int(counts.max())
    order = row.argsort(stable=True)
    number = torch.arange(len(row), device=row.device)
    place = torch.empty_like(row)
    place[order] = row[order] * most + number - (counts.cumsum(0) - counts)[row[order]]
    return most, place, len(row) == prompts * most and bool((place == number).all())


def _fast(q: Tensor, options: Options) -> bool:
    return q.device.type == 'cpu' and options.window is None and options.softcap is None


def _added(seen: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float('-inf'))


def _causal(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    """Rows by themselves, padded on the right: (B, H, L, D)."""
    if q.shape[1] > k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    if options.window is None and options.softcap is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=options.scale)
    step = torch.arange(q.shape[2], device=q.device)
    seen = step.unsqueeze(1) >= step
    if options.window is not None:
        seen = seen & (step.unsqueeze(1) - step < options.window)
    return _softmax(_score(q, k, _added(seen, q), options), None, v.dtype) @ v


def _score(q: Tensor, k: Tensor, mask: Optional[Tensor], options: Options) -> Tensor:
    score = q @ k.transpose(-1, -2) * options.scale
    if options.softcap is not None:
        score = torch.tanh(score / options.softcap) * options.softcap
    return score if mask is None else score + mask


def _softmax(score: Tensor, more: Optional[Tensor], dtype: torch.dtype) -> Tensor:
    score = score if more is None else torch.cat([score, more], dim=-1)
    return score.softmax(-1, dtype=torch.promote_types(score.dtype, torch.float32)).to(dtype)


def _joined(
        above: Tensor, kp: Tensor, vp: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor],
        own_mask: Tensor, options: Options, rows: int
) -> Tensor:
    """``_Joined`` in plain operations."""
    score = _of_rows(_score(above, kp, mask, options), q.shape, rows)  # (P R, H, T, L)
    weight = _softmax(score, _score(q, k, own_mask, options), v.dtype)
    longest = kp.shape[2]
    of_prompt = _of_prompts(weight[..., :longest], above.shape, rows) @ vp
    return _of_rows(of_prompt, q.shape, rows) + weight[..., longest:] @ v


def _of_rows(x: Tensor, shape: torch.Size, rows: int) -> Tensor:
    """(P, K, rep R T, *) -> (P R, H, T, *)."""
    lines, heads, columns = shape[:3]
    x = x.unflatten(2, (heads // x.shape[1], rows, columns)).flatten(1, 2)  # (P, H, R, T, *)
    return x.transpose(1, 2).flatten(0, 1)


def _of_prompts(x: Tensor, shape: torch.Size, rows: int) -> Tensor:
    """(P R, H, T, *) -> (P, K, rep R T, *)."""
    prompts, groups = shape[:2]
    x = x.unflatten(0, (prompts, rows)).transpose(1, 2)  # (P, H, R, T, *)
    return x.unflatten(1, (groups, -1)).flatten(2, 4)


class _Joined(torch.autograd.Function):
    """
    Overview:
        Attention of rows to their prompts' keys and to their own, by the processor's flash attention on each, joined \
        by their normalisers; its backward takes the joint result and normaliser of both, which makes each part's \
        gradient the joint one's.
    """

    @staticmethod
    def forward(
            ctx: Any, above: Tensor, kp: Tensor, vp: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor],
            scale: float, rows: int
    ) -> Tensor:
        out, lse = _flash(above, kp, vp, attn_mask=mask, scale=scale)
        own_out, own_lse = _flash(q, k, v, is_causal=True, scale=scale)  # (P R, H, T, D), (P R, H, T)
        out, lse = _of_rows(out, q.shape, rows), _of_rows(lse.unsqueeze(-1), q.shape, rows).squeeze(-1)
        share = torch.sigmoid(own_lse - lse).unsqueeze(-1).to(out.dtype)
        out = torch.lerp(out, own_out, share)
        ctx.save_for_backward(above, kp, vp, q, k, v, out, torch.logaddexp(lse, own_lse), mask)
        ctx.scale, ctx.rows = scale, rows
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        above, kp, vp, q, k, v, out, lse, mask = ctx.saved_tensors
        dq, dk, dv = _flash_backward(grad, q, k, v, out, lse, 0.0, True, scale=ctx.scale)
        moved = [_of_prompts(x, above.shape, ctx.rows).contiguous() for x in (grad, out, lse.unsqueeze(-1))]
        da, dkp, dvp = _flash_backward(
            moved[0], above, kp, vp, moved[1], moved[2].squeeze(-1), 0.0, False, attn_mask=mask, scale=ctx.scale
        )
        return da, dkp, dvp, dq, dk, dv, None, None, None


def _attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Optional[Tensor],
        shared: Any = None,
        **kwargs,
) -> Tuple[Tensor, Optional[Tensor]]:
    """What ``transformers`` calls in every layer; without ``shared`` it is the attention that the model came with."""
    if shared is None:
        own = module.config._attn_implementation[len(NAME) + 1:]
        function = sys.modules[type(module).__module__].eager_attention_forward if own == 'eager' else \
            ALL_ATTENTION_FUNCTIONS[own]
        return function(module, query, key, value, attention_mask, **kwargs)
    if torch.is_autocast_enabled(query.device.type):  # transformers' rotary embedding gives float32
        query, key, value = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (query, key, value))
    scale = kwargs.get('scaling') or query.shape[-1] ** -0.5
    options = Options(scale, kwargs.get('sliding_window'), kwargs.get('softcap'))
    return shared.attend(module.layer_idx, query, key, value, options), None


for _own in ('sdpa', 'eager'):
    AttentionInterface.register(f'{NAME}_{_own}', _attention)
    AttentionMaskInterface.register(f'{NAME}_{_own}', ALL_MASK_ATTENTION_FUNCTIONS[_own])


def install(lm: PreTrainedModel) -> bool:
    """
    Overview:
        Let a model's attention share prompts when it is asked to; else it stays what it is.
    Arguments:
        - lm (:obj:`PreTrainedModel`): A causal language model.
    Returns:
        - installed (:obj:`bool`): False if its attention is another than transformers' own two.
    """
    own = lm.config._attn_implementation
    if own not in ('sdpa', 'eager'):
        return False
    lm.set_attn_implementation(f'{NAME}_{own}')
    return True


def read(lm: PreTrainedModel, ids: Tensor, position: Tensor, shared: Any) -> Tensor:
    """
    Overview:
        Hidden states of packed tokens.
    Arguments:
        - lm (:obj:`PreTrainedModel`): With ``install``.
        - ids (:obj:`torch.LongTensor`): The tokens.
        - position (:obj:`torch.LongTensor`): Their positions.
        - shared (:obj:`Union[Whole, Growing]`): What sees what.
    Shapes:
        - ids (:obj:`torch.LongTensor`): :math:`(N, )`
        - position (:obj:`torch.LongTensor`): :math:`(N, )`
        - hidden (:obj:`torch.FloatTensor`): :math:`(N, H)`
    """
    no_mask = torch.zeros(1, 1, 1, 1, device=ids.device)  # of four dimensions it is handed on as it is
    out = lm.base_model(
        input_ids=ids.unsqueeze(0),
        position_ids=position.unsqueeze(0),
        attention_mask=no_mask,
        use_cache=False,
        shared=shared,
    )
    return out.last_hidden_state[0]
