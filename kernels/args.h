// Written from src/gpu/backend/args.rs by `KIN_INFER_UPDATE=1 cargo test --test gpu_kernels`.
#pragma once
#include "prelude.h"

#define ACTIVATION_IDENTITY 0u
#define ACTIVATION_RELU 1u
#define ACTIVATION_GELU_ERF 2u
#define ACTIVATION_GELU_TANH 3u
#define ACTIVATION_SILU 4u
#define ACTIVATION_SIGMOID 5u
#define ACTIVATION_TANH 6u
#define POOL_CLS 0u
#define POOL_MAX 1u
#define POOL_MEAN 2u
#define POOL_MEAN_SQRT_LEN 3u
#define POOL_WEIGHTED_MEAN 4u
#define POOL_LAST 5u
#define STORED_F32 0u
#define STORED_F16 1u
#define STORED_BF16 2u
#define STORED_Q8_0 3u
#define STORED_Q4_0 4u
#define MATMUL_BIAS 1u
#define MATMUL_FACTOR 2u
#define MATMUL_RESIDUAL 4u
#define ATTENTION_STORED 1u
#define ATTENTION_WINDOW 2u
#define SOFTMAX_FILL 4u
#define SOFTMAX_CAPPED 8u
#define TERMS_BY_QUERY 1u
#define TERMS_BY_KEY 2u
#define BIAS_NONE 0u
#define BIAS_ALIBI 1u
#define BIAS_DISTANCE 2u
#define TILE_QUERIES 32u
#define TILE_WORDS 8u
#define TILE_ROW 0u
#define TILE_QUERY 1u
#define TILE_COUNT 2u
#define TILE_KEYS 3u
#define TILE_LEN 4u
#define TILE_SCORES 5u
#define TILE_STRIDE 6u
#define KV_BLOCK 64u

struct CountArgs {
    uint count;
};
struct ActivateArgs {
    uint count;
    uint activation;
};
struct ScaleArgs {
    uint count;
    float factor;
};
struct RowsArgs {
    uint rows;
    uint width;
};
struct NormArgs {
    uint slices;
    uint count;
    uint first;
    uint stride;
    uint width;
    uint layer_norm;
    uint has_beta;
    float eps;
};
struct ArgMaxArgs {
    uint cols;
    uint among;
};
struct GatherArgs {
    uint rows;
    uint cols;
    uint kind;
    uint accumulate;
};
struct RopeArgs {
    uint rows;
    uint stride;
    uint first;
    uint heads;
    uint head_dim;
    uint half_dim;
    uint interleaved;
};
struct StoreArgs {
    uint rows;
    uint kv_heads;
    uint head_dim;
    uint k_first;
    uint k_stride;
    uint v_first;
    uint v_stride;
};
struct PoolArgs {
    uint rows;
    uint cols;
    uint skip;
    uint mode;
    uint out_first;
    uint out_stride;
};
struct MatmulArgs {
    uint rows;
    uint n;
    uint k;
    uint slots;
    uint flags;
    uint activation;
};
struct ScoreArgs {
    uint dim;
    uint head;
    uint kv_heads;
    uint q_first;
    uint q_stride;
    uint q_group;
    uint k_first;
    uint k_stride;
    uint k_group;
    uint behind;
    uint ahead;
    uint flags;
};
struct TermArgs {
    uint reach;
    uint rows;
    uint flags;
};
struct SoftmaxArgs {
    uint head;
    uint behind;
    uint ahead;
    uint flags;
    uint bias;
    uint reach;
    float scale;
    float softcap;
};
struct ValueArgs {
    uint dim;
    uint head;
    uint kv_heads;
    uint v_first;
    uint v_stride;
    uint k_group;
    uint out_stride;
    uint behind;
    uint ahead;
    uint flags;
};
