//! Plain names of the operations, data sets and baselines of a record.

/// Operations of one topic: the heading, and each operation's name in a record and in prose.
pub struct Topic {
    pub heading: &'static str,
    operations: &'static [(&'static str, &'static str)],
}

/// Topics in the order in which pages show them.
pub const TOPICS: [Topic; 8] = [
    Topic {
        heading: "Unstructured sparse matrix times dense matrix (SpMM)",
        operations: &[
            ("spmm", "SpMM"),
            ("spmm, prepacked", "SpMM, prepacked"),
            ("spmm_bias_relu", "SpMM with bias and ReLU"),
            ("spmm_bias_relu, prepacked", "SpMM with bias and ReLU, prepacked"),
        ],
    },
    Topic {
        heading: "Block-sparse and 2:4 weights",
        operations: &[
            ("block_spmm", "SpMM, block-sparse weights"),
            ("nm_spmm", "SpMM, 2:4 weights"),
            ("layer_forward", "linear layer, forward"),
            ("layer_backward", "linear layer, backward"),
            ("training", "training step with block masks"),
        ],
    },
    Topic { heading: "Dense products", operations: &[("dense", "dense product")] },
    Topic {
        heading: "Dense times dense at the nonzeros of a pattern (SDDMM)",
        operations: &[("sddmm", "SDDMM")],
    },
    Topic {
        heading: "Sparsity that is known only at run time",
        operations: &[
            ("pit_matmul", "dynamic A"),
            ("pit_tf32", "dynamic A"),
            ("pit_turned", "dynamic A stored as [k,m]"),
            ("pit_right", "dynamic B"),
            ("pit_conv", "convolution with empty channels"),
            ("ffn", "second product of a ReLU feed-forward"),
            ("ffn_layer", "ReLU feed-forward"),
        ],
    },
    Topic {
        heading: "Attention, encoders, mixture of experts",
        operations: &[
            ("attention_decode", "attention of one query over a cache"),
            ("packed_attention", "attention over packed sequences"),
            ("encoder", "encoder layer over packed sequences"),
            ("moe", "mixture of experts, ReLU"),
            ("gated_moe", "mixture of experts, gated"),
        ],
    },
    Topic {
        heading: "Sparse convolution",
        operations: &[("conv", "submanifold convolution, 3 x 3 x 3")],
    },
    Topic {
        heading: "Whole programs",
        operations: &[
            ("models", "encoder of 12 layers"),
            ("first_result", "process start to first result"),
        ],
    },
];

impl Topic {
    /// Plain name of the operation at an index.
    pub fn name(&self, at: usize) -> &'static str {
        self.operations[at].1
    }
}

/// Index of an operation's topic, and its index there. `None` if no topic contains it.
pub fn operation(what: &str) -> Option<(usize, usize)> {
    TOPICS.iter().enumerate().find_map(|(topic, words)| {
        let mut names = words.operations.iter();
        Some((topic, names.position(|(name, _)| *name == what)?))
    })
}

/// Operands of a data set, in words.
pub fn data(set: &str) -> &str {
    match set {
        "DLMC" => "pruned weights (DLMC)",
        "uniform" => "uniform random",
        "LSTM" => "LSTM weights",
        "MobileNetV1" => "MobileNetV1 weights",
        "decode" => "decoding, 8 to 64 tokens",
        "blocks" => "blocks of 16 to 128, density 0.05 to 1",
        other => other,
    }
}

/// Plain name of the baseline, with the algorithm if the name of the library does not imply it.
pub fn baseline(operation: &str, engine: &str) -> String {
    let name = match engine {
        "cublas" => "cuBLAS",
        "cublas-tf32" => "cuBLAS in TF32",
        "cublaslt" => "cuBLASLt",
        "cudnn" => "cuDNN",
        "cusparse" => "cuSPARSE",
        "cusparselt" => "cuSPARSELt",
        "torch" => "PyTorch",
        "twin" => "padded encoder of einsparse",
        "cuda-init" => "CUDA initialization alone",
        other => other,
    };
    let dense = match (operation, engine) {
        ("models", "cublas") => ", its 48 dense products alone",
        ("encoder", "cublas") => ", padded layer",
        ("moe", "cublas") => ", products alone",
        ("moe", "torch") => " grouped GEMM, products alone",
        ("gated_moe", "torch") => " grouped GEMM, compiled",
        ("attention_decode", "torch") => " SDPA",
        ("encoder", "torch") => ", compiled",
        ("conv", "cublas" | "cublas-tf32") => ", one dense product of as many rows",
        ("pit_conv", "cublas") => ", dense product, patches given",
        ("pit_conv", _) => ", dense",
        (_, "cublas" | "cublas-tf32" | "cublaslt") => ", dense",
        _ => "",
    };
    format!("{name}{dense}")
}
