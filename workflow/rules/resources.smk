# What a job needs, and which code it depends on.


def largest_megabytes(path):
    return (
        max((file.stat().st_size for file in Path(path).rglob("*") if file.is_file()), default=0)
        // 1_000_000
    )


def acquired_memory(wildcards, input, attempt):
    """Megabytes: compressed, often 8-bit weights as float32 twice, or fresh float32 weights thrice; for a hub's, those of a billion parameters in half precision."""
    if isinstance(source := SOURCES[wildcards.model], RandomInitSource):
        # a file of at most 1 GB at a time, or one tensor, where tensors are drawn by themselves
        return attempt * (
            4000 if source.dtype else 1500 + 12 * rough_parameters(Path(input[0])) // 1_000_000
        )
    largest = max(
        (Path(path).stat().st_size for path in input), default=None
    )  # of a hub's repository no file is at hand
    return attempt * (8000 if largest is None else 1500 + 10 * largest // 1_000_000)


def rough_parameters(path):
    """Of a transformer with the configuration in this file, from above: two token tables, and sixteen squares of the width per block.

    A field that is absent counts as in a base-sized model. 0 for a file that is no configuration: the job itself refuses it in one line.
    """
    try:
        settings = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return 0

    def setting(usual, *names):
        return next(
            (
                settings[name]
                for name in names
                if isinstance(settings.get(name), int) and settings[name] > 0
            ),
            usual,
        )

    width = setting(768, "hidden_size", "n_embd", "d_model")
    blocks = setting(12, "num_hidden_layers", "n_layer", "num_layers", "encoder_layers")
    return width * (2 * setting(50_000, "vocab_size") + 16 * width * blocks)


def model_memory(*forward_dtypes):
    """Megabytes of a job that runs a checkpoint in these arithmetics: weights, the stored ones beside them, and accumulators.

    Somewhat above what was measured (max_rss in logs/benchmarks): what is declared in excess keeps other jobs from running beside.
    """

    def memory(wildcards, input, attempt):
        parameters = json.loads(Path(input.manifest).read_text(encoding="utf-8"))["parameters"]
        return attempt * (
            1500 + (26 if "float64" in forward_dtypes else 10) * parameters // 1_000_000
        )

    return memory


def block_memory(manifest, forward_dtypes, schur_sites, jackknife_groups):
    """Megabytes above the imports of a pass through one block at a time: a block, the accumulators of its sites, and what stands around. Depth does not enter."""
    square = max(stack["width"] for stack in manifest["stacks"]) ** 2
    blocks = sum(stack["blocks"] for stack in manifest["stacks"])
    block = min(16 * square, manifest["parameters"] // blocks)
    behind_activation = (
        any("schur" in groups for groups in forward_dtypes.values())
        and "mlp_down_input" in schur_sites
    )
    # in matrices of the width: two sites in groups of sequences, half a matrix each, six others, and
    # what one site needs when its moments are made, which behind the activation is four times as wide
    matrices = 8 + jackknife_groups + (64 if behind_activation else 4)
    return (block * (12 if "float64" in forward_dtypes else 8) + 8 * matrices * square) // 1_000_000


def capture_memory(wildcards, input, attempt):
    """Megabytes of a job that runs a checkpoint one block at a time. Files that are not mapped are in memory whole."""
    manifest = json.loads(Path(input.manifest).read_text(encoding="utf-8"))
    settings = capture_settings(wildcards)
    values = block_memory(
        manifest,
        captured_groups(wildcards),
        settings.get("schur_sites", ()),
        settings["jackknife_groups"],
    )
    if not all(path.endswith(".safetensors") for path in manifest["weights"]):
        values += 4 * manifest["parameters"] // 1_000_000
    return attempt * (1500 + values)


def twins_memory(wildcards, input, attempt):
    """Megabytes of a job that draws twins one block at a time: of a pass, or of the largest table over the vocabulary, drawn whole and then read by rows."""
    manifest = json.loads(Path(input.manifest).read_text(encoding="utf-8"))
    own = config["reinitialised"]
    groups = capture_settings(wildcards)["jackknife_groups"]
    values = block_memory(manifest, own["forward_dtypes"], own["schur_sites"], groups)
    inside = sum(8 * stack["blocks"] * stack["width"] ** 2 for stack in manifest["stacks"])
    table = max(0, manifest["parameters"] - inside)
    return attempt * (1500 + values + 8 * table // 1_000_000)


def changed_memory(wildcards, input, attempt):
    """Megabytes of a job that compares a checkpoint with changed ones, one block at a time, in float64: of a pass, of the tensors that an absorption or a shift changes, and of what is recorded."""
    manifest = json.loads(Path(input.manifest).read_text(encoding="utf-8"))
    values = block_memory(manifest, {"float64": []}, (), 0)
    return attempt * (1500 + values + 12 * manifest["parameters"] // 1_000_000)


def moments_memory(wildcards, input, attempt):
    """Megabytes: the moments of one site at a time, a few matrices of its size."""
    return attempt * (1500 + 8 * max(map(largest_megabytes, input.moments)))


def comparison_memory(wildcards, input, attempt):
    """Megabytes: one block of both sides in float64, and a few matrices over pairs of its units."""
    parameters = max(
        json.loads(Path(path).read_text(encoding="utf-8"))["parameters"]
        for path in (input.manifest_a, input.manifest_b)
    )
    return attempt * (3000 + 8 * parameters // 1_000_000)


def solver_memory(wildcards, input, attempt):
    """Megabytes: a design and its factors, and what is known of the largest map, the readout's logits as a rule; their columns are read in parts."""
    return attempt * (1500 + 2 * largest_megabytes(input.observations))


def part_memory(wildcards, input, attempt):
    """Megabytes: the float64 weights of one part and of what lies outside of blocks, and the stored ones as they are read."""
    parameters = json.loads(Path(input.manifest).read_text(encoding="utf-8"))["parameters"]
    return attempt * (2500 + 8 * parameters // 1_000_000)


def joined_memory(wildcards, input, attempt):
    """Megabytes: values and claims of all parts, twice while they are written."""
    sizes = (file.stat().st_size for path in input for file in Path(path).rglob("*.safetensors"))
    return attempt * (1000 + 2 * sum(sizes) // 1_000_000)


@cache
def script_hash(script):
    return code_hash(WORKFLOW / "scripts" / script)


def code_of(script):
    """A params function: hash of a script and of every library module it imports, so that an edited module reruns exactly its dependants.

    Scripts that a plan does not need are not read.
    """

    def part(wildcards):
        return script_hash(script)

    return part
