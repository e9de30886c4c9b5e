"""The models of examples/models as PyTorch runs them best: without sparse weights, compiled, each one CUDA graph, with
random weights and data. Behind common.py.

    python3 -c "$(cat common.py models.py)" '[["opt_relu 5120 -> 20480 -> 5120, 8 tokens", "f16", []]]'

A case is its text in the record, its type, and files of 32-bit numbers: lengths of sequences, or offsets and columns of
a graph. Prints a line for each variant: numbers of the cases and its name, milliseconds cold, milliseconds warm."""

KINDS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LIMIT = 90  # seconds of a variant, most of them its compiler's
PRODUCTS = []  # of the graph that a model runs on
torch.set_grad_enabled(False)
torch.set_float32_matmul_precision("high")  # TF32
torch.backends.cudnn.benchmark = True
torch._dynamo.config.recompile_limit = 64
compiled = torch.compile(dynamic=False)

draws = lambda dtype: lambda *shape, size=1.0: torch.randn(*shape, device="cuda", dtype=KINDS[dtype]) * size
linear = lambda normal, inputs, outputs, gain=1.0: normal(outputs, inputs, size=gain * inputs**-0.5)
read = lambda path: torch.from_file(path, size=os.path.getsize(path) // 4, dtype=torch.int32).to("cuda")
norm = lambda x, factors: F.rms_norm(x, factors.shape, factors, 1e-5)
add_norm = compiled(lambda x, more, factors: norm(x + more, factors))
cross_entropy = compiled(lambda x, head, labels: F.cross_entropy(F.linear(x, head).float(), labels))
two_layers = lambda x, first, second: F.linear(F.relu(F.linear(x, first)), second)
half_squares = compiled(lambda y, *layers: 0.5 * (two_layers(*layers) - y).float().square().sum())
sgd = compiled(lambda xs, ys, gs, rate: [y.copy_(x.sub_(g.float() * rate)) for x, y, g in zip(xs, ys, gs)])
planes = lambda x, taps, bias, stride: F.relu(F.conv2d(x, taps, bias, stride, 1, groups=len(taps)))
together = lambda x, *own, stride: torch.cudnn_convolution_relu(x, *own, [stride] * 2, [1] * 2, [1] * 2, len(own[0]))
scattered = compiled(lambda h, rows, columns, w: torch.zeros_like(h).index_add(0, rows, h[columns] * w[:, None]))


def rotary(positions, dim):
    angles = positions[:, None, None] * 10_000.0 ** (torch.arange(0, dim, 2, device="cuda") / -dim)
    return angles.cos(), angles.sin()


def rotated(x, angles):
    (cos, sin), (a, b) = angles, x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


@compiled
def llama(x, more, products, norms, cache, angles, past):
    """A layer; what it adds at its end is left to the next, whose norm reads it."""
    (qkv, out, up, down), (keys, values), x = products, cache, x + more
    q, k, v = F.linear(norm(x, norms[0]), qkv).view(len(x), 3, keys.shape[1], -1).unbind(1)
    keys[:, :, past - 1], values[:, :, past - 1] = rotated(k, angles), v
    q = rotated(q, angles)[:, :, None]
    seen = F.scaled_dot_product_attention(q, keys[:, :, :past], values[:, :, :past])
    x = x + F.linear(seen.reshape(x.shape), out)
    gates, others = F.linear(norm(x, norms[1]), up).chunk(2, -1)
    return x, F.linear(F.silu(gates) * others, down)


def decode(dtype, files, layers, batch=1, past=1024, vocabulary=32_000):
    """A token of each sequence; of one sequence with the vocabulary where no batch is named."""
    width, hidden, heads, capacity, dim, normal = 4096, 11_008, 32, 1280, 128, draws(dtype)
    extents = [(width, 3 * width), (width, width), (width, 2 * hidden), (hidden, width)]
    pair = lambda *shape: (normal(*shape), normal(*shape))
    layer = lambda: ([linear(normal, *own) for own in extents], pair(width), pair(batch, heads, capacity, dim))
    own, x, last = [layer() for _ in range(layers)], normal(batch, width), normal(width)
    angles = rotary(torch.tensor([past - 1], device="cuda"), dim)
    table, tokens = normal(vocabulary, width), torch.zeros(batch, device="cuda", dtype=torch.int64)

    def run():
        y = F.embedding(tokens, table) if vocabulary else x
        more = torch.zeros_like(y)
        for layer in own:
            y, more = llama(y, more, *layer, angles, past)
        y = add_norm(y, more, last)
        return tokens.copy_(F.linear(y, table).argmax(-1)) if vocabulary else y

    qkv = normal(batch, heads, 1, dim), *(part[:, :, :past] for part in own[0][2])
    return attending("dense-compiled", run, qkv)


@compiled
def qwen(x, normed, weights, factors, cache, angles, numbers, past):
    (qkv, out, routing, up, down), tokens = weights, len(x)
    q, k, v = F.linear(normed, qkv).view(tokens, -1, 128).split((32, 4, 4), 1)
    q, k = rotated(q, angles), rotated(k, angles)
    if cache:
        keys, values = cache
        keys[:, :, past], values[:, :, past] = k, v
        q, k, v = q[:, :, None], keys[:, :, : past + 1], values[:, :, : past + 1]
    else:
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=not cache, enable_gqa=True)
    x = x + F.linear((seen if cache else seen.transpose(1, 2)).reshape(tokens, -1), out)
    normed = norm(x, factors[0])
    x = x + gated_experts(normed, F.linear(normed, routing).float(), (up, down), numbers, 8)
    return x, norm(x, factors[1])


def moe(dtype, files, tokens, past=0):
    model, dim, experts, hidden, normal = 2048, 128, 128, 768, draws(dtype)
    numbers, x, routing = torch.arange(experts, device="cuda"), normal(tokens, model), linear(normal, model, experts)
    # The first feature is the same for all tokens: experts are chosen by Zipf's law.
    x[:, 0], routing[:, 0] = 4.0, -0.25 * (numbers + 1.0).log()
    weights = [linear(normal, model, 40 * dim), linear(normal, 32 * dim, model, 1e-4), routing]
    weights += [normal(experts, 2 * hidden, model, size=model**-0.5), normal(experts, model, hidden, size=1e-5)]
    factors = [torch.ones_like(x[0]) for _ in range(2)]
    cache = [normal(tokens, 4, past + 8, dim) for _ in range(2)] if past else None
    angles = rotary(torch.tensor([past], device="cuda") if past else torch.arange(tokens, device="cuda"), dim)
    normed = norm(x, factors[1])
    run = lambda: qwen(x, normed, weights, factors, cache, angles, numbers, past)
    keys = [part[:, :, : past + 1] for part in cache] if past else [normal(1, 4, tokens, dim)] * 2
    q = normal(tokens, 32, 1, dim) if past else normal(1, 32, tokens, dim)
    return attending("grouped_mm-compiled", run, (q, *keys), is_causal=not past, enable_gqa=True)


@compiled
def bert(x, ends, longest, qkv, out, up, down, first, second):
    q, k, v = F.linear(x, *qkv).view(len(x), 3, -1, 64).unbind(1)
    seen = varlen(q, k, v, ends, longest).reshape(x.shape)
    h = F.layer_norm(x + F.linear(seen, *out), x.shape[1:], *first)
    f = F.linear(F.gelu(F.linear(h, *up), approximate="tanh"), *down)
    return F.layer_norm(h + f, x.shape[1:], *second)


def encoder(dtype, files, layers, width, tokens, places, padded):
    normal, lengths = draws(dtype), read(files[0])
    ends, longest = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32), int(lengths.max())
    there = (torch.arange(places // len(lengths), device="cuda") < lengths[:, None]).flatten().nonzero()[:, 0]
    product = lambda i, o: (linear(normal, i, o), normal(o, size=0.1))
    affine = lambda: (1 + normal(width, size=0.1), normal(width, size=0.1))
    extents = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    own = [[*(product(*pair) for pair in extents), affine(), affine()] for _ in range(layers)]
    x = normal(places if padded else tokens, width)

    def run():
        y = x[there] if padded else x
        for layer in own:
            y = bert(y, ends, longest, *layer)
        return torch.zeros_like(x).index_copy(0, there, y) if padded else y

    return {"packed-compiled": run}


def step_of(loss, x, parameters, update):
    """Loss, gradients of input and parameters, update of the parameters in f32 and of the copies that products read."""
    copies = [own.detach() for own in parameters]
    masters = [own.float() for own in copies]
    wanted = [own.requires_grad_() for own in (x, *parameters)]

    def run():
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(), wanted)
        update(masters, copies, gradients[1:])

    return run


@compiled
def adam(masters, copies, gradients, firsts, seconds, step):
    step += 1
    rate = 1e-3 * torch.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for x, y, g, m, v in zip(masters, copies, gradients, firsts, seconds):
        g = g.float()
        m.lerp_(g, 0.1)
        v.lerp_(g * g, 0.001)
        y.copy_(x.sub_(rate * m / (v.sqrt() + 1e-8)))


@compiled
def block(x, heads, qkv, out, up, up_bias, down, down_bias, *norms):
    q, k, v = F.linear(x, qkv).view(len(x), 3, heads, -1).permute(1, 2, 0, 3)[:, None].unbind(0)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
    h = F.layer_norm(x + F.linear(seen, out), x.shape[1:], *norms[:2], 1e-6)
    f = F.linear(F.relu(F.linear(h, up, up_bias)), down, down_bias)
    return F.layer_norm(h + f, x.shape[1:], *norms[2:], 1e-6)


def transformer(dtype, files, what, layers, width, tokens):
    heads, hidden, classes, normal = 8, 4 * width, 256, draws(dtype)
    vector = lambda extent, around=0: around + normal(extent, size=0.1)

    def layer():
        attention = [linear(normal, width, 3 * width), linear(normal, width, width)]
        forward = [linear(normal, width, hidden), vector(hidden), linear(normal, hidden, width), vector(width)]
        return [*attention, *forward, vector(width, 1), vector(width), vector(width, 1), vector(width)]

    own, x, head = [layer() for _ in range(layers)], normal(tokens, width), linear(normal, width, classes)
    labels, step = torch.randint(classes, (tokens,), device="cuda"), torch.zeros((), device="cuda")

    def run():
        y = x
        for layer in own:
            y = block(y, heads, *layer)
        return y

    forward, parameters = run, [*sum(own, []), head]
    if what != "inference":
        moments = [[torch.zeros_like(own, dtype=torch.float32) for own in parameters] for _ in range(2)]
        loss, update = lambda: cross_entropy(forward(), head, labels), lambda *lists: adam(*lists, *moments, step)
        run = step_of(loss, x, parameters, update)
    qkv = [normal(1, heads, tokens, width // heads) for _ in range(3)]
    return attending("dense-compiled", run, qkv, is_causal=True)


def sparse_training(dtype, files, width, tokens):
    normal = draws(dtype)
    parameters, x, target = [linear(normal, width, width) for _ in range(2)], *(normal(tokens, width) for _ in range(2))
    update = lambda *lists: sgd(*lists, 3.0 / (width * tokens))
    return {"dense-compiled": step_of(lambda: half_squares(target, x, *parameters), x, parameters, update)}


def opt_relu(dtype, files, width, hidden, tokens):
    normal, columns, ways = draws(dtype), lambda w: w.t().contiguous().t(), {}
    x, up, down, zeros = normal(tokens, width), normal(width, hidden), normal(hidden, width), normal(hidden) * 0
    for name, u, w in [("rows", up, down), ("columns", columns(up), columns(down))]:
        ways[f"dense-{name}"] = lambda u=u, w=w: F.relu(x @ u) @ w
        ways[f"dense-{name}-fused"] = lambda u=u, w=w: torch._addmm_activation(zeros, x, u) @ w
    return ways


def net(x, first, blocks, classifier, planes):
    """Batch norm is in the weights. Channels lie side by side: a 1x1 convolution is a product with bias and ReLU."""
    x = F.relu(F.conv2d(x, *first, 2, 1))
    for stride, taps, bias, weights, summand in blocks:
        rows = planes(x, taps, bias, stride=stride).permute(0, 2, 3, 1)
        out = torch._addmm_activation(summand, rows.reshape(-1, len(taps)), weights.t())
        x = out.view(*rows.shape[:3], -1).permute(0, 3, 1, 2)
    return F.linear(x.mean((2, 3)), *classifier)


def mobilenet(dtype, files, edge, batch):
    outputs = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    normal, inputs, blocks = draws(dtype), 32, []
    window = lambda *shape: normal(*shape, size=0.3).contiguous(memory_format=torch.channels_last)
    for channels, stride in outputs:
        pair = linear(normal, inputs, channels), normal(channels, size=0.1)
        blocks.append((stride, window(inputs, 1, 3, 3), normal(inputs, size=0.1), *pair))
        inputs = channels
    first, classifier = (window(32, 3, 3, 3), normal(32)), (linear(normal, inputs, 1000), normal(1000))
    own = window(batch, 3, edge, edge), first, blocks, classifier
    ways = {"cublaslt": lambda: net(*own, planes), "cudnn": lambda: net(*own, together)}
    return {"dense-compiled": lambda: compiled(net)(*own, planes)} | {f"dense-{name}": ways[name] for name in ways}


@torch.library.custom_op("peers::along", mutates_args=())
def along(h: torch.Tensor, back: bool) -> torch.Tensor:
    """Features summed along the edges, or against them: one operation for the compiler."""
    return PRODUCTS[0](h, back)


along.register_fake(lambda h, back: h.new_empty(h.shape))
keep = lambda ctx, inputs, output: setattr(ctx, "back", inputs[1])
along.register_autograd(lambda ctx, g: (along(g, not ctx.back), None), setup_context=keep)


@compiled
def graph_loss(h, layers, labels):
    for w, b, *own in layers:
        edges_first = w.shape[0] <= w.shape[1]
        z = torch.addmm(b, along(h, False), w) if edges_first else along(h @ w, False) + b
        z = torch.addmm(z, h, own[0]) if own else z
        h = z if w is layers[-1][0] else F.relu(z)
    return F.cross_entropy(h, labels)


def gcn(dtype, files, kind, scale):
    (offsets, columns), widths, normal = map(read, files), (128, 128, 128, 40), draws(dtype)
    vertices = torch.arange(len(offsets) - 1, device="cuda")
    rows, columns, count = vertices.repeat_interleave(offsets.diff()), columns.long(), len(vertices)
    if kind == "Gcn":
        edges = torch.cat((rows * count + columns, vertices * (count + 1))).unique()
        rows, columns = edges // count, edges % count
    counts = rows.bincount(minlength=count)
    offsets, degree = F.pad(counts.cumsum(0), (1, 0)).int(), counts.to(KINDS[dtype])
    # There is an edge back for each: the transpose has the same pattern.
    roots, means = [(degree[rows] * degree[columns]) ** -0.5] * 2, [1 / degree[rows], 1 / degree[columns]]
    values = roots if kind == "Gcn" else means
    matrices = [torch.sparse_csr_tensor(offsets, columns.int(), own, (count, count)) for own in values]
    # The product of CSR is what torch_geometric calls, too; its other way is a gather and a scatter.
    ways = {"csr": lambda h, back: matrices[back] @ h}
    ways["scatter"] = lambda h, back: scattered(h, rows, columns, values[back])
    x, labels = normal(count, widths[0]), torch.randint(widths[3], (count,), device="cuda")
    best = by_time({name: lambda way=way: way(x, False) for name, way in ways.items()})[0]
    PRODUCTS[:] = [ways[best]]
    glorot = lambda i, o: normal(i, o, size=(2 / (i + o)) ** 0.5)
    layer = lambda i, o: (glorot(i, o), normal(o) * 0, *([glorot(i, o)] if kind == "Sage" else []))
    layers = [layer(*pair) for pair in zip(widths, widths[1:])]
    parameters = [own.requires_grad_() for layer in layers for own in layer]
    optimizer = torch.optim.Adam(parameters, lr=0.01, fused=True, capturable=True)

    def run():
        with torch.enable_grad():
            gradients = torch.autograd.grad(graph_loss(x, layers, labels), parameters)
        for own, gradient in zip(parameters, gradients):
            own.grad = gradient
        optimizer.step()

    return {f"{best}-compiled": run}


MODELS = {
    r"decode (\d+) layers, .* batch (\d+), (\d+) past": lambda *asked: decode(*asked, vocabulary=0),
    r"decode a token, (\d+) layers": decode,
    r"encoder, (\d+) layers of (\d+), (\d+) tokens of (\d+)(, padded in and out)?": encoder,
    r"(Gcn|Sage) step, R-MAT (\d+)": gcn,
    r"mobilenet_v1 8/8, (\d+) x \d+, batch (\d+)": mobilenet,
    r"moe \w+, (\d+) \w+(?:, (\d+) past)?": moe,
    r"opt_relu (\d+) -> (\d+) -> \d+, (\d+) tokens": opt_relu,
    r"sparse_training step (\d+) -> \d+ -> \d+, (\d+) tokens": sparse_training,
    r"transformer (inference|training step), (\d+) layers of (\d+), (\d+) tokens": transformer,
}
cases, same, done = json.loads(sys.argv[1]), {}, []
for number, (case, dtype, files) in enumerate(cases):
    for pattern, model in MODELS.items():
        if match := re.match(pattern, case):
            extents = tuple(int(own) if own and own.isdigit() else own for own in match.groups())
            same.setdefault((model, dtype, tuple(files), extents), []).append(number)
for (model, dtype, files, extents), numbers in same.items():
    case = f"{cases[numbers[0]][0]}, {dtype}"
    variants = in_time(case, lambda: model(dtype, files, *extents), LIMIT) or {}
    for variant, run in variants.items():
        times = in_time(f"{case}, {variant}", lambda: measure(graph_of(run)), LIMIT)
        if times:
            print(f"{','.join(map(str, numbers))}:{variant}", *times, flush=True)
    variants, run, done = None, None, done + numbers
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        # A fault on the device stays with the process: the other cases go on in a new one.
        rest = [["", "", []] if number in done else case for number, case in enumerate(cases)]
        os.execv(sys.executable, [*sys.orig_argv[:-1], json.dumps(rest)])
