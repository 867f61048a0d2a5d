# Copyright 2026 The ClozeBERT authors. SPDX-License-Identifier: Apache-2.0
"""Triton kernels: attention within a window (window_attention.py), the gradient of joined rotary heads (joined.py).

Both gradients can be one tensor of joined heads, with queries and keys rotated by their negative angles.

Attention within a window over packed documents, forward and backward. As in FlashAttention (Dao et al. 2022) no score
leaves the chip. A block of queries is multiplied with the few blocks of keys that its window reaches, whichever
documents they belong to. Two tokens see each other if they are in the same document and at most WINDOW apart. So there
is one program for each block of the row and each head, however long documents are.

    s_ij = q_i k_j / sqrt(K),  p_ij = exp(s_ij - l_i),  o_i = sum_j p_ij v_j,  l_i = log(sum_j exp(s_ij))
    ds_ij = p_ij (do_i v_j - do_i o_i),  dq_i = sum_j ds_ij k_j,  dk_j = sum_i ds_ij q_i,  dv_j = sum_i p_ij do_i

Logarithms are to base 2 here. Shapes: N tokens, H heads, G heads of keys, K head size. q, o and their gradients
[N, H, K], k, v and theirs [N, G, K], logarithms and products do_i o_i [H, N].
"""

try:  # otherwise transformers would require Triton for every checkpoint that carries this code
    import triton
    import triton.language as tl
except ImportError:
    raise

_UNSEEN = tl.constexpr(-1.0e30)


@triton.jit
def _rows(pointer, index, token_stride, head, head_stride, tokens, K: tl.constexpr):
    """The vectors of one head at the tokens of `index`; zeros beyond the row."""
    is_token = (index >= 0) & (index < tokens)
    where = index.to(tl.int64)[:, None] * token_stride + head * head_stride + tl.arange(0, K)[None, :]
    return tl.load(pointer + where, mask=is_token[:, None], other=0.0)


@triton.jit
def _put_rows(pointer, x, index, token_stride, head, tokens, K: tl.constexpr):
    """Write vectors of one head; the heads of a token lie together."""
    where = index.to(tl.int64)[:, None] * token_stride + head * K + tl.arange(0, K)[None, :]
    tl.store(pointer + where, x.to(pointer.dtype.element_ty), mask=(index < tokens)[:, None])


@triton.jit
def _put_turned(
    pointer, cos_ptr, sin_ptr, x, index, token_stride, head, tokens, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """`_put_rows` of vectors rotated by their negative angles; cos and sin [N, K / 2]."""
    lane = tl.arange(0, K // 2)[None, :]
    token, fits = index.to(tl.int64)[:, None], (index < tokens)[:, None]
    first, second = tl.split(tl.permute(tl.reshape(x, [BLOCK, 2, K // 2]), [0, 2, 1]))
    cos = tl.load(cos_ptr + token * (K // 2) + lane, mask=fits, other=0.0)
    sin = tl.load(sin_ptr + token * (K // 2) + lane, mask=fits, other=0.0)
    out = pointer + token * token_stride + head * K + lane
    tl.store(out, (first * cos + second * sin).to(pointer.dtype.element_ty), mask=fits)
    tl.store(out + K // 2, (second * cos - first * sin).to(pointer.dtype.element_ty), mask=fits)


@triton.jit
def _documents(pointer, index, tokens, other):
    return tl.load(pointer + index, mask=(index >= 0) & (index < tokens), other=other)


@triton.jit
def _sees(document_ptr, document, row, column, tokens, WINDOW: tl.constexpr):
    """Which tokens of `row` and `column` see each other, [rows, columns]; `document` is that of each row."""
    of_column = _documents(document_ptr, column, tokens, -2)
    distance = row[:, None] - column[None, :]
    return (document[:, None] == of_column[None, :]) & (distance <= WINDOW) & (distance >= -WINDOW)


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, document_ptr, out_ptr, log_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head, tokens, heads, groups, scale,
    WINDOW: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """out and logarithms of a block of queries. `scale` includes the factor log2(e)."""
    head = tl.program_id(1)
    first = tl.program_id(0) * BLOCK
    query = first + tl.arange(0, BLOCK)
    document = _documents(document_ptr, query, tokens, -1)
    q = _rows(q_ptr, query, q_token, head, q_head, tokens, K)
    high = tl.full([BLOCK], _UNSEEN, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    out = tl.zeros([BLOCK, K], tl.float32)
    SIDE: tl.constexpr = (WINDOW + STEP - 1) // STEP * STEP
    for start in range(first - SIDE, first + BLOCK + SIDE, STEP):
        key = start + tl.arange(0, STEP)
        k = _rows(k_ptr, key, k_token, head // groups, k_head, tokens, K)
        v = _rows(v_ptr, key, v_token, head // groups, v_head, tokens, K)
        sees = _sees(document_ptr, document, query, key, tokens, WINDOW)
        s = tl.where(sees, tl.dot(q, tl.trans(k)) * scale, _UNSEEN)
        # What a block without a visible key adds is multiplied by 0 later, since every token sees itself.
        higher = tl.maximum(high, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(high - higher)
        total = total * shrink + tl.sum(p, 1)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None])
        high = higher
    _put_rows(out_ptr, out / total[:, None], query, heads * K, head, tokens, K)
    tl.store(log_ptr + head * tokens + query, high + tl.log2(total), mask=query < tokens)


@triton.jit
def query_gradient_kernel(
    q_ptr, k_ptr, v_ptr, document_ptr, out_ptr, grad_ptr, log_ptr, product_ptr, dq_ptr, cos_ptr, sin_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head, grad_token, grad_head, dq_token, tokens, heads, groups,
    scale, scale_of_s,
    WINDOW: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """dq of a block of queries, with TURNS rotated back, and their do_i o_i for the other kernel."""
    head = tl.program_id(1)
    first = tl.program_id(0) * BLOCK
    query = first + tl.arange(0, BLOCK)
    document = _documents(document_ptr, query, tokens, -1)
    q = _rows(q_ptr, query, q_token, head, q_head, tokens, K)
    grad = _rows(grad_ptr, query, grad_token, head, grad_head, tokens, K)
    out = _rows(out_ptr, query, heads * K, head, K, tokens, K)
    log = tl.load(log_ptr + head * tokens + query, mask=query < tokens, other=0.0)
    product = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(product_ptr + head * tokens + query, product, mask=query < tokens)
    dq = tl.zeros([BLOCK, K], tl.float32)
    SIDE: tl.constexpr = (WINDOW + STEP - 1) // STEP * STEP
    for start in range(first - SIDE, first + BLOCK + SIDE, STEP):
        key = start + tl.arange(0, STEP)
        k = _rows(k_ptr, key, k_token, head // groups, k_head, tokens, K)
        v = _rows(v_ptr, key, v_token, head // groups, v_head, tokens, K)
        sees = _sees(document_ptr, document, query, key, tokens, WINDOW)
        p = tl.where(sees, tl.exp2(tl.dot(q, tl.trans(k)) * scale - log[:, None]), 0.0)
        ds = p * (tl.dot(grad, tl.trans(v)) - product[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    if TURNS:
        _put_turned(dq_ptr, cos_ptr, sin_ptr, dq * scale_of_s, query, dq_token, head, tokens, K, BLOCK)
    else:
        _put_rows(dq_ptr, dq * scale_of_s, query, dq_token, head, tokens, K)


@triton.jit
def key_gradient_kernel(
    q_ptr, k_ptr, v_ptr, document_ptr, grad_ptr, log_ptr, product_ptr, dk_ptr, dv_ptr, cos_ptr, sin_ptr,
    q_token, q_head, k_token, k_head, v_token, v_head, grad_token, grad_head, dk_token, dv_token, tokens, groups,
    scale, scale_of_s,
    WINDOW: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """dk, with TURNS rotated back, and dv of a block of keys, summed over the heads of queries that share them."""
    key_head = tl.program_id(1)
    first = tl.program_id(0) * BLOCK
    key = first + tl.arange(0, BLOCK)
    document = _documents(document_ptr, key, tokens, -1)
    k = _rows(k_ptr, key, k_token, key_head, k_head, tokens, K)
    v = _rows(v_ptr, key, v_token, key_head, v_head, tokens, K)
    dk = tl.zeros([BLOCK, K], tl.float32)
    dv = tl.zeros([BLOCK, K], tl.float32)
    SIDE: tl.constexpr = (WINDOW + STEP - 1) // STEP * STEP
    for head in range(key_head * groups, (key_head + 1) * groups):
        for start in range(first - SIDE, first + BLOCK + SIDE, STEP):
            query = start + tl.arange(0, STEP)
            is_query = (query >= 0) & (query < tokens)
            q = _rows(q_ptr, query, q_token, head, q_head, tokens, K)
            grad = _rows(grad_ptr, query, grad_token, head, grad_head, tokens, K)
            log = tl.load(log_ptr + head * tokens + query, mask=is_query, other=0.0)
            product = tl.load(product_ptr + head * tokens + query, mask=is_query, other=0.0)
            sees = _sees(document_ptr, document, key, query, tokens, WINDOW)
            p = tl.where(sees, tl.exp2(tl.dot(k, tl.trans(q)) * scale - log[None, :]), 0.0)
            dv = tl.dot(p.to(grad.dtype), grad, dv)
            ds = p * (tl.dot(v, tl.trans(grad)) - product[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk)
    if TURNS:
        _put_turned(dk_ptr, cos_ptr, sin_ptr, dk * scale_of_s, key, dk_token, key_head, tokens, K, BLOCK)
    else:
        _put_rows(dk_ptr, dk * scale_of_s, key, dk_token, key_head, tokens, K)
    _put_rows(dv_ptr, dv, key, dv_token, key_head, tokens, K)


@triton.jit
def turn_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, rows, heads, out_heads, first,
    HALF: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Write heads of x [N, heads, 2 HALF], with TURNS rotated by their negative angles, into out
    [N, out_heads, 2 HALF] from head `first` on; cos and sin [N, HALF]; `rows` is N * heads."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, PADDED)
    fits = (row < rows)[:, None] & (lane < HALF)[None, :]
    token = row // heads
    x_at = x_ptr + row[:, None] * (2 * HALF) + lane[None, :]
    out_at = out_ptr + ((token * out_heads + first + row % heads) * (2 * HALF))[:, None] + lane[None, :]
    x = tl.load(x_at, mask=fits, other=0.0)
    y = tl.load(x_at + HALF, mask=fits, other=0.0)
    if TURNS:
        cos = tl.load(cos_ptr + token[:, None] * HALF + lane[None, :], mask=fits, other=0.0)
        sin = tl.load(sin_ptr + token[:, None] * HALF + lane[None, :], mask=fits, other=0.0)
        x, y = x.to(tl.float32) * cos + y.to(tl.float32) * sin, y.to(tl.float32) * cos - x.to(tl.float32) * sin
    tl.store(out_at, x.to(out_ptr.dtype.element_ty), mask=fits)
    tl.store(out_at + HALF, y.to(out_ptr.dtype.element_ty), mask=fits)


ALL_KERNELS = {
    "forward": forward_kernel,
    "queries": query_gradient_kernel,
    "keys": key_gradient_kernel,
    "turn": turn_kernel,
}
