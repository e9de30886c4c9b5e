"""Peers that PyTorch has and no library with a C interface: products of experts in groups, attention over packed
sequences, an encoder layer made of it, attention of one query over a cache and at blocks of keys. Behind common.py.

    python3 -c "$(cat common.py torch.py)" moe '{"counts": [64, 0], "model": 768, "hidden": 3072}'
    ... gated '{"tokens": 64, "experts": 128, "top": 8, "model": 2048, "hidden": 768, "zipf": 0, "scaled": 0}'
    ... cached '{"batch": 8, "heads": [32, 8], "dim": 128, "tokens": 8192, "dtype": "bf16"}'
    ... blocks '{"heads": 8, "extent": 16384, "dim": 128, "top": 64}'
    ... packed '{"lengths": [40, 7], "heads": 12, "dim": 64, "hidden": 3072, "dtype": "f16"}'

Prints a line for each: name, milliseconds cold, milliseconds warm."""


def moe(counts, model, hidden):
    tokens = sum(counts)
    ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
    x, up, down = normal(tokens, model), normal(len(counts), model, hidden), normal(len(counts), hidden, model)
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    # Weights by rows or by columns: the library's kernels differ.
    columns = lambda w: w.transpose(1, 2).contiguous().transpose(1, 2)
    for name, pair in [("rows", (up, down)), ("columns", (columns(up), columns(down)))]:

        def run(pair=pair):
            return product(product(x, pair[0], offs=ends), pair[1], offs=ends)

        tell(f"grouped_mm-{name}", run)


def gated(tokens, experts, top, model, hidden, zipf, scaled):
    normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
    x, up, down = normal(tokens, model), normal(experts, 2 * hidden, model), normal(experts, model, hidden)
    noise = -torch.empty(tokens, experts, device="cuda").exponential_().log()
    logits = noise - zipf * torch.arange(1, experts + 1, device="cuda").log()
    numbers = torch.arange(experts, device="cuda")
    ways = {"grouped_mm": (up, down)} | ({"scaled_grouped_mm": (Scaled(up), Scaled(down))} if scaled else {})
    for name, weights in ways.items():
        run = lambda: gated_experts(x, logits, weights, numbers, top)
        for name, run in ((name, run), (f"{name}-compiled", torch.compile(run))):
            replay = in_time(name, lambda: graph_of(run))
            if replay:
                tell(name, replay)


def packed(lengths, heads, dim, hidden, dtype):
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    width, tokens, longest = heads * dim, sum(lengths), max(lengths)
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=kind)
    attention = lambda q, k, v: varlen(q, k, v, ends, longest)
    q, k, v = (normal(tokens, heads, dim) for _ in range(3))
    with torch.no_grad():
        tell("attention", graph_of(lambda: attention(q, k, v)))
        x = normal(tokens, width)
        linear = lambda i, o: (normal(o, i) * i**-0.5, normal(o) * 0.1)
        qkv, out, up, down = linear(width, 3 * width), linear(width, width), linear(width, hidden), linear(hidden, width)
        norms = [(torch.ones(width, device="cuda", dtype=kind), normal(width) * 0.1) for _ in range(2)]

        # Queries, keys and values as they lie between each other, where the attention takes them so.
        whole = lambda part: part
        try:
            attention(*normal(tokens, 3, heads, dim).unbind(1))
        except RuntimeError:
            whole = lambda part: part.contiguous()

        def layer(x):
            q, k, v = F.linear(x, *qkv).view(tokens, 3, heads, dim).unbind(1)
            seen = attention(whole(q), whole(k), whole(v)).reshape(tokens, width)
            h = F.layer_norm(x + F.linear(seen, *out), (width,), *norms[0])
            f = F.linear(F.gelu(F.linear(h, *up), approximate="tanh"), *down)
            return F.layer_norm(h + f, (width,), *norms[1])

        tell("layer", graph_of(lambda: layer(x)))
        # What tunes its products as well takes minutes: for one type.
        for mode in ["default"] + ["max-autotune-no-cudagraphs"] * (dtype == "f16"):
            try:
                compiled = torch.compile(layer, mode=mode)
                compiled(x)
                tell(f"layer-compiled-{mode}", graph_of(lambda: compiled(x)))
            except Exception as error:
                print(f"# layer-compiled-{mode}: {error}".splitlines()[0], flush=True)


def cached(batch, heads, dim, tokens, dtype):
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    queries, keys = heads
    normal = lambda *shape: torch.randn(*shape, device="cuda", dtype=kind)
    q, k, v = normal(batch, queries, 1, dim), normal(batch, keys, tokens, dim), normal(batch, keys, tokens, dim)
    grouped = {"enable_gqa": True} if queries != keys else {}
    with torch.no_grad():
        tell("sdpa", graph_of(lambda: F.scaled_dot_product_attention(q, k, v, **grouped)))
        # Flash attention cuts the keys by itself, and takes tokens in front of heads.
        by_tokens = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        del q, k, v

        def flash():
            return torch.ops.aten._flash_attention_forward(*by_tokens, None, None, 1, tokens, 0.0, False, False)[0]

        tell("flash", graph_of(flash))


def blocks(heads, extent, dim, top):
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    side = extent // 64
    q, k, v = (torch.randn(1, heads, extent, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    # Rows of the lists are as long as there are blocks; those named come first.
    named = torch.rand(heads, side, side, device="cuda").argsort(-1)[None]
    named[..., :top] = named[..., :top].sort(-1).values
    count = torch.full((1, heads, side), top, device="cuda", dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(
        torch.zeros_like(count), named.int(), count, named.int(), BLOCK_SIZE=64, compute_q_blocks=False
    )
    compiled, options = torch.compile(flex_attention), {"BLOCK_M": 64, "BLOCK_N": 64}
    with torch.no_grad():
        tell("flex", graph_of(lambda: compiled(q, k, v, block_mask=mask, kernel_options=options)))


def autograd(vertices, edges, features):
    columns = torch.randint(0, vertices, (vertices * edges,), device="cuda").view(vertices, edges).sort(-1).values
    offsets = torch.arange(0, vertices * edges + 1, edges, device="cuda")
    sources, targets = columns.flatten(), torch.arange(vertices, device="cuda").repeat_interleave(edges)
    values = torch.randn(vertices * edges, device="cuda", requires_grad=True)
    b = torch.randn(vertices, features, device="cuda", requires_grad=True)
    seed = torch.randn(vertices, features, device="cuda")

    def product():
        return torch.sparse_csr_tensor(offsets, sources, values, (vertices, vertices)) @ b

    # As libraries for graphs compute it: rows are gathered, multiplied and added.
    def gathered():
        return torch.zeros_like(b).index_add_(0, targets, b[sources] * values[:, None])

    for name, forward in (("csr", product), ("gathered", gathered), ("gathered-compiled", torch.compile(gathered))):

        def step(forward=forward):
            values.grad = b.grad = None
            forward().backward(seed)

        try:
            tell(name, step)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(f"# {name}: {error}".splitlines()[0], flush=True)


{"moe": moe, "gated": gated, "packed": packed, "cached": cached, "blocks": blocks, "autograd": autograd}[sys.argv[1]](**json.loads(sys.argv[2]))
