//! What kernels and host share: the structs of kernels' arguments, and numbers that both name. `kernels/args.h` is
//! written from here; a test compares.

/// A kernel's last parameter.
pub(super) trait Args {
    /// Its bytes, field after field.
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! c_type {
    (u32) => {
        "uint"
    };
    (f32) => {
        "float"
    };
}

/// Structs of 4-byte fields, and their text in C.
macro_rules! structs {
    ($($name:ident { $($field:ident: $kind:ident),* })*) => {
        $(
            pub(super) struct $name { $(pub $field: $kind),* }

            impl Args for $name {
                fn bytes(&self) -> Vec<u8> {
                    [$(self.$field.to_ne_bytes()),*].concat()
                }
            }
        )*

        const STRUCTS: &str = concat!($(
            "struct ", stringify!($name), " {\n",
            $("    ", c_type!($kind), " ", stringify!($field), ";\n",)*
            "};\n",
        )*);
    };
}

/// Constants, and their text in C.
macro_rules! numbers {
    ($($name:ident = $value:literal),* $(,)?) => {
        $(pub(super) const $name: u32 = $value;)*

        const NUMBERS: &str = concat!($("#define ", stringify!($name), " ", stringify!($value), "u\n"),*);
    };
}

structs! {
    CountArgs { count: u32 }
    ActivateArgs { count: u32, activation: u32 }
    ScaleArgs { count: u32, factor: f32 }
    RowsArgs { rows: u32, width: u32 }
    NormArgs { slices: u32, count: u32, first: u32, stride: u32, width: u32, layer_norm: u32, has_beta: u32, eps: f32 }
    ArgMaxArgs { cols: u32, among: u32 }
    GatherArgs { rows: u32, cols: u32, kind: u32, accumulate: u32 }
    RopeArgs { rows: u32, stride: u32, first: u32, heads: u32, head_dim: u32, half_dim: u32, interleaved: u32 }
    StoreArgs { rows: u32, kv_heads: u32, head_dim: u32, k_first: u32, k_stride: u32, v_first: u32, v_stride: u32 }
    PoolArgs { rows: u32, cols: u32, skip: u32, mode: u32, out_first: u32, out_stride: u32 }
    MatmulArgs { rows: u32, n: u32, k: u32, slots: u32, flags: u32, activation: u32 }
    ScoreArgs {
        dim: u32, head: u32, kv_heads: u32, q_first: u32, q_stride: u32, q_group: u32, k_first: u32, k_stride: u32,
        k_group: u32, behind: u32, ahead: u32, flags: u32
    }
    TermArgs { reach: u32, rows: u32, flags: u32 }
    SoftmaxArgs {
        head: u32, behind: u32, ahead: u32, flags: u32, bias: u32, reach: u32, scale: f32, softcap: f32
    }
    ValueArgs {
        dim: u32, head: u32, kv_heads: u32, v_first: u32, v_stride: u32, k_group: u32, out_stride: u32, behind: u32,
        ahead: u32, flags: u32
    }
}

numbers! {
    ACTIVATION_IDENTITY = 0,
    ACTIVATION_RELU = 1,
    ACTIVATION_GELU_ERF = 2,
    ACTIVATION_GELU_TANH = 3,
    ACTIVATION_SILU = 4,
    ACTIVATION_SIGMOID = 5,
    ACTIVATION_TANH = 6,
    POOL_CLS = 0,
    POOL_MAX = 1,
    POOL_MEAN = 2,
    POOL_MEAN_SQRT_LEN = 3,
    POOL_WEIGHTED_MEAN = 4,
    POOL_LAST = 5,
    STORED_F32 = 0,
    STORED_F16 = 1,
    STORED_BF16 = 2,
    STORED_Q8_0 = 3,
    STORED_Q4_0 = 4,
    MATMUL_BIAS = 1,
    MATMUL_FACTOR = 2,
    MATMUL_RESIDUAL = 4,
    ATTENTION_STORED = 1,
    ATTENTION_WINDOW = 2,
    SOFTMAX_FILL = 4,
    SOFTMAX_CAPPED = 8,
    TERMS_BY_QUERY = 1,
    TERMS_BY_KEY = 2,
    BIAS_NONE = 0,
    BIAS_ALIBI = 1,
    BIAS_DISTANCE = 2,
    TILE_QUERIES = 32,
    TILE_WORDS = 8,
    TILE_ROW = 0,
    TILE_QUERY = 1,
    TILE_COUNT = 2,
    TILE_KEYS = 3,
    TILE_LEN = 4,
    TILE_SCORES = 5,
    TILE_STRIDE = 6,
    KV_BLOCK = 64,
}

/// The text of `kernels/args.h`.
pub fn header() -> String {
    let first = "// Written from src/gpu/backend/args.rs by `KIN_INFER_UPDATE=1 cargo test --test gpu_kernels`.\n";
    format!("{first}#pragma once\n#include \"prelude.h\"\n\n{NUMBERS}\n{STRUCTS}")
}
